#pragma once
/* One Chromium process: found, given a profile of its own, started with its DevTools pipes on 3 and
 * 4, ended, and cleaned up after. Loop thread; disk work runs on workers.
 *
 * A profile is a directory in $TMPDIR, /tmp, /dev/shm or the state directory (the first that takes
 * it), below abx-browser-UID/; a file in it is locked while its server lives. So what a killed
 * server left is known by its free lock and removed, also under another host name, and a live one's
 * is respected. */

#include "base/env.h"
#include "base/error.h"
#include "base/loop.h"
#include "process/spawn.h"

struct chrome;

struct chrome_config {
    struct loop *loop;
    struct spawner *spawner;
    const struct env_map
        *env;         /* HOME, locale, time zone and fonts are passed on; nothing else is */
    const char *path; /* the program, or NULL: looked for in the server's PATH */
    const char *state_dir;
    int proxy_port;  /* SOCKS on 127.0.0.1; 0: the environment's proxies, if any */
    bool no_sandbox; /* also without being root */
};

struct chrome_ops {
    /* It runs. The descriptors are the callee's: answers come from read_fd, calls go to write_fd.
     */
    void (*up)(void *owner, int read_fd, int write_fd);
    /* It could not be started. No other call follows; chrome_stop is still due. */
    void (*failed)(void *owner, const struct abx_error *err);
    /* It has ended by itself. */
    void (*exited)(void *owner, int status);
};

/* Errors: E_NO_MEMORY. What else goes wrong comes as `failed` (E_RUNTIME_503). Copies the config.
 */
struct chrome *chrome_start(const struct chrome_config *config, const struct chrome_ops *ops,
                            void *owner, struct abx_error *err);

/* Ends the process (its pipes should be closed first: that alone makes it go), TERM and KILL
 * behind, then removes the profile and frees itself. ops are not called any more. NULL is fine. */
void chrome_stop(struct chrome *c);

/* The same at the end of the server: children are gone, no worker runs; removes at once. */
void chrome_stop_now(struct chrome *c);

pid_t chrome_pid(const struct chrome *c);           /* 0: not running */
const char *chrome_program(const struct chrome *c); /* "" until found */
/* The last thing it printed that looks like a reason; "" when none. Valid until the next call. */
const char *chrome_last_words(struct chrome *c);

/* Removes profiles that dead servers left. Costs one lstat when there are none. */
void chrome_clean_leftovers(struct loop *loop, const char *state_dir);

/* Absolute path of an installed browser, or NULL. search_path: like $PATH. Heap. Any thread. */
char *chrome_find(const char *search_path);
