#pragma once
/* Programs whose job is to start other programs: rules about commands can't see past them. Pure;
 * any thread; may read the first bytes of a script. */

#include <stdbool.h>
#include <stddef.h>

/* One file that is many programs, told apart by the name it is called by (busybox, toybox). */
bool program_is_multi_call(const char *base_name);

/* Would this command line hand control to another program, or to code in its own arguments?
 * program: the file that will run, or NULL; real: the same with links followed, or NULL;
 * search: the server's PATH (a script elsewhere is judged by its #! line). */
bool program_runs_others(char *const *argv, size_t argc, const char *program, const char *real,
                         const char *search);
