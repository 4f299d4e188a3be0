#include "code/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/own.h"

#define INLINE_MAX ((size_t)256 * KIB) /* more is written down on a worker */

struct code_run {
    struct spawner *spawner;
    struct loop *loop;
    struct code_order o;
    struct source src;
    struct abx_error err;
    int written; /* of source_write */
    struct proc *proc;
    struct output out[2];
    uint64_t started_ns;
    bool timed_out, killed;
    void (*done)(void *data, int sys, const struct code_result *result);
    void *data;
};

static void removed(void *data)
{
    free(data);
}

static void remove_source(void *data)
{
    source_remove(data);
}

static void run_free(struct code_run *r)
{
    if (r->src.dir) {
        struct source *left = malloc(sizeof(*left));
        if (left) {
            *left = (struct source){.fd = -1, .dir = take_ptr(r->src.dir)};
            if (loop_work(r->loop, WORK_LONG, remove_source, removed, left) < 0) {
                source_remove(left);
                free(left);
            }
        }
    }
    source_remove(&r->src);
    output_done(&r->out[0]);
    output_done(&r->out[1]);
    free(r);
}

static void tell(struct code_run *r, int sys, const struct code_result *result)
{
    r->done(r->data, sys, result);
    run_free(r);
}

static void on_started(void *owner, struct proc *p, int sys)
{
    struct code_run *r = owner;
    if (sys != 0) {
        tell(r, sys, NULL);
        return;
    }
    r->started_ns = child_started_ns(proc_child(p));
    if (r->src.fd >= 0)
        close(take_fd(&r->src.fd));
}

static void on_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct code_run *r = owner;
    output_add(&r->out[stream == PROC_STDERR], data, len);
}

static void on_timed_out(void *owner)
{
    ((struct code_run *)owner)->timed_out = true;
}

static void on_ended(void *owner, int exit_code)
{
    struct code_run *r = owner;
    r->proc = NULL;
    struct code_result result = {.out = r->out,
                                 .exit_code = exit_code,
                                 .timed_out = r->timed_out,
                                 .ms = (double)(mono_ns() - r->started_ns) / 1e6};
    output_finish(&r->out[0]);
    output_finish(&r->out[1]);
    tell(r, 0, &result);
}

static const struct proc_ops ops = {
    .started = on_started, .output = on_output, .timed_out = on_timed_out, .ended = on_ended};

static int start_program(struct code_run *r, struct abx_error *err)
{
    const struct code_order *o = &r->o;
    autofree char **argv = language_argv(o->lang, r->src.dir, o->args);
    if (!argv)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    struct spawn_extra extra = {.child_fd = CODE_FD, .fd = r->src.fd};
    /* A language whose program is run by another (C) names that one in argv[0]. */
    bool own = strcmp(argv[0], o->lang->program) == 0;
    struct proc_opts p = {
        .spawn = {.file = own ? o->program : argv[0], .argv = argv, .envp = o->envp, .cwd_fd = o->cwd_fd,
                  .fds = {-1, -1, -1}, .extra = &extra, .n_extra = r->src.fd >= 0, .uid = -1, .gid = -1},
        .stdin_mode = o->input ? PROC_STDIN_INPUT : PROC_STDIN_NULL,
        .input = o->input,
        .input_len = o->input_len,
        .timeout_ms = o->timeout_ms};
    return proc_start(r->spawner, r->loop, &p, &ops, r, &r->proc, err);
}

static void write_source(void *data)
{
    struct code_run *r = data;
    r->written = source_write(r->o.lang, r->o.code, r->o.code_len, r->o.tmp, &r->src, &r->err);
}

static void source_written(void *data)
{
    struct code_run *r = data;
    if (r->written < 0 || r->killed || start_program(r, &r->err) < 0)
        tell(r, r->killed ? ECANCELED : r->err.sys ? r->err.sys : ENOMEM, NULL);
}

int code_run_start(struct spawner *s, struct loop *loop, const struct code_order *o,
                   void (*done)(void *data, int sys, const struct code_result *result), void *data,
                   struct code_run **ret, struct abx_error *err)
{
    struct code_run *r = calloc(1, sizeof(*r));
    if (!r)
        return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
    r->spawner = s;
    r->loop = loop;
    r->o = *o;
    r->src.fd = -1;
    r->done = done;
    r->data = data;
    output_init(&r->out[0], o->max_output);
    output_init(&r->out[1], o->max_output);
    if (o->lang->file || o->code_len > INLINE_MAX) {
        if (loop_work(loop, WORK_SHORT, write_source, source_written, r) < 0) {
            run_free(r);
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
        }
    } else if (source_write(o->lang, o->code, o->code_len, o->tmp, &r->src, err) < 0 || start_program(r, err) < 0) {
        run_free(r);
        return -1;
    }
    *ret = r;
    return 0;
}

void code_run_kill(struct code_run *r)
{
    r->killed = true;
    if (r->proc)
        proc_kill(r->proc, 0);
}
