#pragma once
/* `check-config`: reads the policy that `serve` would use, and says what it means. */

/* argv[0] is the subcommand's name. Prints to stdout and stderr.
 * Returns the exit code: 0 fine, 1 invalid policy, 2 usage error or warnings with --strict,
 * 3 --explain answers no. */
int cli_check_config(int argc, char **argv);
