#pragma once
/* The command line. Each subcommand gets argv from its own name on and returns the exit status. */

#include <getopt.h>
#include <stdbool.h>

struct env_map;
struct policy_doc;

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
};

int cli_main(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_healthcheck(int argc, char **argv);
int cli_check_config(int argc, char **argv);
int cli_init(int argc, char **argv);

/* getopt_long with our messages: long options (unambiguous prefixes too), -h; unknown ones are refused on
 * stderr with a near miss. Returns the option's val, -1 at the end, '?' after a usage error was printed
 * (exit with EXIT_USAGE), 'h' for help. `usage`: one line, without "usage: ". Positional arguments are refused. */
int cli_option(int argc, char **argv, const struct option *options, const char *usage);

/* Digits and nothing else: no sign, no blank. */
bool cli_is_digits(const char *text);
/* A port or another whole number (digits only) from an option; prints the refusal itself. 0 / -1. */
int cli_number(const char *option, const char *text, long min, long max, long *ret);

/* The environment that children get (env_free), made of a copy of our own block, which is left as it is. NULL: no
 * memory. */
struct env_map *cli_child_environment(const struct policy_doc *doc);
