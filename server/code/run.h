#pragma once
/* One run of a program text, from nothing to its exit. Loop thread. */

#include "code/language.h"
#include "code/output.h"
#include "process/proc.h"

struct code_order {
    const struct language *lang;
    const char *program; /* file to run */
    const char *code;    /* borrowed until done */
    size_t code_len;
    char *const *envp;   /* borrowed until done */
    int cwd_fd;          /* borrowed until done */
    char *const *args;   /* NULL-terminated or NULL; borrowed until done */
    const char *input;   /* for stdin; NULL: none; borrowed until done */
    size_t input_len;
    const char *tmp;     /* for temporary directories */
    uint64_t timeout_ms;
    size_t max_output;   /* bytes per stream */
};

struct code_result {
    struct output *out; /* [2]: stdout, stderr; finished */
    int exit_code;      /* 0..255 or -signal */
    double ms;          /* from the start of the program to its end */
    bool timed_out;
};

struct code_run;

/* done is called once, later: with a result (sys 0), or with what kept the program from starting (errno in
 * sys, result NULL). All of the order's pointers must live until then.
 * Errors: those of proc_start and source_write. */
int code_run_start(struct spawner *s, struct loop *loop, const struct code_order *o,
                   void (*done)(void *data, int sys, const struct code_result *result), void *data,
                   struct code_run **ret, struct abx_error *err);
/* Ends the program and all it started; done follows. */
void code_run_kill(struct code_run *r);
