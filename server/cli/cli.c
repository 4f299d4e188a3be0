#include "cli/cli.h"

#include "base/num.h"
#include "base/own.h"
#include "policy/policy.h"
#include "registry/registry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: abx-server [COMMAND] [OPTIONS]\n"
    "\n"
    "The in-container server of an agent sandbox: files, processes, terminals and the\n"
    "template's own commands over HTTP (port 9000) and WebSocket (port 9001).\n"
    "\n"
    "commands:\n"
    "  serve          run the server (the default)\n"
    "  healthcheck    ask a running server whether it is up; exit status 0 or 1\n"
    "  check-config   read a policy, show what it means, warn about its traps\n"
    "  init           write a template to start from\n"
    "  version        print the version\n"
    "\n"
    "abx-server --cflags prints what a compiler needs to build a commands file.\n"
    "abx-server COMMAND --help tells a command's options.\n";

bool cli_is_digits(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

int cli_number(const char *option, const char *text, long min, long max, long *ret)
{
    int64_t n;
    if (!cli_is_digits(text) || num_parse(text, min, max, &n) < 0) {
        fprintf(stderr, "abx-server: %s must be a whole number from %ld to %ld, not '%s'\n", option, min, max,
                text);
        return -1;
    }
    *ret = (long)n;
    return 0;
}

static void refuse_unknown(const char *word, const struct option *options)
{
    const char *names[32];
    size_t n = 0;
    for (; options[n].name && n + 1 < ARRAY_LEN(names); n++)
        names[n] = options[n].name;
    names[n] = NULL;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *near = suggest(name, names);
    if (near)
        fprintf(stderr, "abx-server: unknown option '--%s' (did you mean '--%s'?)\n", name, near);
    else
        fprintf(stderr, "abx-server: unknown option '--%s'\n", name);
}

int cli_option(int argc, char **argv, const struct option *options, const char *usage)
{
    opterr = 0;
    int at = optind > 0 ? optind : 1;
    int c = getopt_long(argc, argv, "+:h", options, NULL);
    if (c == -1) {
        if (optind >= argc)
            return -1;
        fprintf(stderr, "usage: %s\nabx-server: unexpected argument '%s'\n", usage, argv[optind]);
        return '?';
    }
    if (c != '?' && c != ':')
        return c;
    fprintf(stderr, "usage: %s\n", usage);
    const char *word = argv[at];
    if (c == ':')
        fprintf(stderr, "abx-server: option '%s' needs a value\n", word);
    else if (strncmp(word, "--", 2) == 0)
        refuse_unknown(word + 2, options);
    else
        fprintf(stderr, "abx-server: unknown option '%s'\n", word);
    return '?';
}

static int version(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {0}};
    int c = cli_option(argc, argv, options, "abx-server version");
    if (c == 'h') {
        puts("usage: abx-server version\n\nPrints the version.");
        return EXIT_OK;
    }
    if (c != -1)
        return EXIT_USAGE;
    puts(ABX_VERSION);
    return EXIT_OK;
}

static int cflags(void)
{
    autofree char *flags = registry_cflags();
    if (!flags)
        return EXIT_FAILED;
    puts(flags);
    return EXIT_OK;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", cli_serve},
    {"healthcheck", cli_healthcheck},
    {"check-config", cli_check_config},
    {"init", cli_init},
    {"version", version},
};

/* Settings from files and secrets often end with a line break that nobody meant: the blanks around the values of ABX_*
 * go, in the block itself, before anything reads them. The token has rules of its own (policy_token_text). */
static void trim_settings(void)
{
    static const char blanks[] = " \t\r\n\v\f";
    for (char **at = environ; *at; at++) {
        char *value = strchr(*at, '=');
        if (strncmp(*at, "ABX_", 4) != 0 || !value || strncmp(*at, "ABX_SERVER_TOKEN=", 17) == 0)
            continue;
        value++;
        size_t size = strlen(value), from = strspn(value, blanks), to = size;
        while (to > from && strchr(blanks, value[to - 1]))
            to--;
        memmove(value, value + from, to - from);
        explicit_bzero(value + (to - from), size - (to - from)); /* it may be a token of a policy */
    }
}

int cli_main(int argc, char **argv)
{
    trim_settings();
    if (argc < 2)
        return cli_serve(1, (char *[]){"serve", NULL});
    const char *word = argv[1];
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
        fputs(help, stdout);
        return EXIT_OK;
    }
    if (strcmp(word, "--version") == 0)
        return version(argc - 1, argv + 1);
    if (strcmp(word, "--cflags") == 0)
        return cflags();
    const char *names[ARRAY_LEN(commands) + 1] = {NULL};
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(word, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
        names[i] = commands[i].name;
    }
    const char *near = word[0] == '-' ? NULL : suggest(word, names);
    if (word[0] == '-')
        fprintf(stderr, "usage: abx-server [COMMAND] [OPTIONS]\n"
                        "abx-server: options come after a command: abx-server serve %s ...\n", word);
    else if (near)
        fprintf(stderr, "usage: abx-server [COMMAND] [OPTIONS]\n"
                        "abx-server: unknown command '%s' (did you mean '%s'?)\n", word, near);
    else
        fprintf(stderr, "usage: abx-server [COMMAND] [OPTIONS]\nabx-server: unknown command '%s'\n", word);
    return EXIT_USAGE;
}
