/* init: writes a template to start from. The files are those of templates/python-hello/ and the Dockerfiles at the
 * root of the source tree, compiled in. */

#include "cli/cli.h"

#include "base/own.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct template_file {
    const char *name, *text; /* @NAME@ in the text: the template's name */
};

#include "template_files.h"

static const char usage[] = "abx-server init DIR [--name NAME]";
static const char help[] =
    "usage: abx-server init DIR [--name NAME]\n"
    "\n"
    "Writes a template to start from into DIR, which must be empty or new: commands in C,\n"
    "a helper in Python, their tests, template.yaml, Makefile, Dockerfiles, README.\n"
    "\n"
    "  --name NAME   the template's name: a-z, 0-9, '-', at most 63 (made from DIR's name)\n"
    "\n"
    "Exit: 0 written, 1 DIR is not empty or can't be written, 2 usage error.\n";

static const struct option options[] = {
    {"name", required_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'}, {0}};

enum { NAME_MAX_LEN = 63 };

static bool name_is_good(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && n <= NAME_MAX_LEN && !name[n] && name[0] != '-' && name[n - 1] != '-';
}

/* The last part of an absolute path as a name: lower case, other characters become '-', at most one in a row. */
static void name_of(const char *path, char name[NAME_MAX_LEN + 1])
{
    const char *last = strrchr(path, '/');
    size_t n = 0;
    for (const char *c = last ? last + 1 : path; *c && n < NAME_MAX_LEN; c++) {
        if ((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9'))
            name[n++] = *c;
        else if (*c >= 'A' && *c <= 'Z')
            name[n++] = (char)(*c - 'A' + 'a');
        else if (n > 0 && name[n - 1] != '-')
            name[n++] = '-';
    }
    while (n > 0 && name[n - 1] == '-')
        n--;
    name[n] = '\0';
    if (n == 0)
        memcpy(name, "template", sizeof("template"));
}

static int failed(const char *what, const char *path)
{
    fprintf(stderr, "abx-server: %s '%s': %s\n", what, path, strerror(errno));
    return EXIT_FAILED;
}

/* mkdir -p, the last part included. */
static int make_dirs(const char *path)
{
    autofree char *part = strdup(path);
    if (!part)
        return -1;
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0777) < 0 && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return mkdir(part, 0777) < 0 && errno != EEXIST ? -1 : 0;
}

/* EXIT_OK when there is nothing in it; says what is. */
static int check_empty(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d)
        return failed("can't use", dir);
    int rc = EXIT_OK;
    for (struct dirent *e; rc == EXIT_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        fprintf(stderr, "abx-server: '%s' is not empty (it holds '%s'); init writes into a new or empty directory only\n", dir,
                e->d_name);
        rc = EXIT_FAILED;
    }
    closedir(d);
    return rc;
}

static int write_file(int dir, const struct template_file *file, const char *name)
{
    static const char mark[] = "@NAME@";
    int fd = openat(dir, file->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    const char *from = file->text;
    for (const char *at; (at = strstr(from, mark)); from = at + sizeof(mark) - 1) {
        fwrite(from, 1, (size_t)(at - from), f);
        fputs(name, f);
    }
    fputs(from, f);
    bool bad = ferror(f);
    return fclose(f) != 0 || bad ? -1 : 0;
}

int cli_init(int argc, char **argv)
{
    const char *dir = NULL, *name = NULL;
    /* cli_option takes no positional arguments: DIR may stand before or after the options. */
    if (argc > 1 && argv[1][0] != '-') {
        dir = argv[1];
        argv++;
        argc--;
    } else if (argc > 2 && argv[argc - 1][0] != '-' && strcmp(argv[argc - 2], "--name") != 0) {
        dir = argv[--argc];
    }
    for (int c; (c = cli_option(argc, argv, options, usage)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return EXIT_OK;
        }
        if (c != 'n')
            return EXIT_USAGE;
        name = optarg;
    }
    if (!dir || !*dir) {
        fprintf(stderr, "usage: %s\nabx-server: init needs the directory to write\n", usage);
        return EXIT_USAGE;
    }
    if (name && !name_is_good(name)) {
        fprintf(stderr,
                "usage: %s\nabx-server: a template's name has 1 to %d of a-z, 0-9 and '-' (inside), not '%s'\n", usage,
                NAME_MAX_LEN, name);
        return EXIT_USAGE;
    }

    if (make_dirs(dir) < 0)
        return failed("can't make", dir);
    int rc = check_empty(dir);
    if (rc != EXIT_OK)
        return rc;
    autofree char *real = realpath(dir, NULL);
    autoclose int fd = real ? open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return failed("can't use", dir);
    char made[NAME_MAX_LEN + 1];
    name_of(real, made);
    for (size_t i = 0; i < ARRAY_LEN(template_files); i++)
        if (write_file(fd, &template_files[i], name ? name : made) < 0)
            return failed("can't write", template_files[i].name);

    printf("Wrote the template '%s' into %s:\n", name ? name : made, dir);
    for (size_t i = 0; i < ARRAY_LEN(template_files); i++)
        printf("  %s\n", template_files[i].name);
    printf("\nBuild and serve it:\n"
           "  cd %s\n"
           "  cc -shared -fPIC -O2 -o commands.so commands.c $(abx-server --cflags)\n"
           "  abx-server serve --host 127.0.0.1 --base-dir . --commands commands.so\n"
           "and in another terminal:\n"
           "  curl -X POST localhost:9000/commands/hello -d '{\"name\":\"Ada\"}'\n",
           dir);
    return fflush(stdout) == 0 ? EXIT_OK : EXIT_FAILED;
}
