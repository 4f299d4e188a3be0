#include "code/language.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/num.h"
#include "base/own.h"

/* The three of the contract behave as with -c and -e: the name is "__main__", argv begins with "-c", the
 * functions of -e are there. A line of their own fetches the code and leaves nothing behind; Python's hook
 * takes that line out of tracebacks. */
static const char *const python_argv[] = {
    "python3", "-c",
    "import sys; sys.excepthook = lambda t, e, b, h=sys.__excepthook__: "
    "h(t, e.with_traceback(b and b.tb_next), b and b.tb_next); del sys; "
    "exec(compile((lambda f: (f.read(), f.close())[0])(open(3, 'rb')), '<string>', 'exec'))",
    NULL};
/* An indirect eval, unlike vm.runInThisContext, may import(). */
static const char *const node_argv[] = {
    "node", "-e",
    "(0, eval)((f => { const s = f.readFileSync(3, 'utf8'); f.closeSync(3); return s })(require('fs')) + "
    "'\\n//# sourceURL=[eval]')",
    NULL};
/* The variable holds the code after -c too. The code stands alone in its eval: messages name its own lines. */
static const char *const bash_argv[] = {
    "bash", "-c", "BASH_EXECUTION_STRING=$(</dev/fd/3); exec 3<&-; eval \"$BASH_EXECUTION_STRING\"", "bash", NULL};

static const char *const perl_argv[] = {"perl", "/dev/fd/3", NULL};
static const char *const ruby_argv[] = {"ruby", "/dev/fd/3", NULL};
static const char *const lua_argv[] = {"lua", "/dev/fd/3", NULL};
static const char *const php_argv[] = {
    "php", "-r",
    "(function () { $c = file_get_contents('php://fd/3'); eval(str_starts_with(ltrim($c), '<?') ? '?>' . $c : $c); "
    "})();",
    NULL};
static const char *const deno_argv[] = {"deno", "run", "--quiet", "--allow-all", "{dir}/main.ts", NULL};
static const char *const bun_argv[] = {"bun", "run", "{dir}/main.ts", NULL};
static const char *const go_argv[] = {"go", "run", "{dir}/main.go", NULL};
static const char *const rust_argv[] = {"rust-script", "{dir}/main.rs", NULL};
static const char *const c_argv[] = {
    "sh", "-c", "cc -O1 -o \"$0/main\" \"$0/main.c\" -lm && exec \"$0/main\" \"$@\"", "{dir}", NULL};

const struct language languages[] = {
    {.name = "python", .program = "python3", .argv = python_argv, .core = true},
    {.name = "node", .program = "node", .argv = node_argv, .before_args = "--", .core = true},
    {.name = "bash", .program = "bash", .argv = bash_argv, .core = true, .unix_lines = true},
    {.name = "perl", .program = "perl", .argv = perl_argv, .unix_lines = true},
    {.name = "ruby", .program = "ruby", .argv = ruby_argv},
    {.name = "lua", .program = "lua", .argv = lua_argv},
    {.name = "php", .program = "php", .argv = php_argv, .before_args = "--"},
    {.name = "deno", .program = "deno", .argv = deno_argv, .file = "main.ts"},
    {.name = "bun", .program = "bun", .argv = bun_argv, .file = "main.ts"},
    {.name = "go", .program = "go", .argv = go_argv, .file = "main.go"},
    {.name = "rust", .program = "rust-script", .argv = rust_argv, .file = "main.rs"},
    {.name = "c", .program = "cc", .argv = c_argv, .file = "main.c"},
};
const size_t n_languages = ARRAY_LEN(languages);

const struct language *language_find(const char *name)
{
    for (size_t i = 0; i < n_languages; i++) {
        if (strcmp(languages[i].name, name) == 0)
            return &languages[i];
    }
    return NULL;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* CRLF becomes LF; a lone CR stays. */
static size_t unix_lines(char *to, const char *code, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (code[i] != '\r' || i + 1 == len || code[i + 1] != '\n')
            to[n++] = code[i];
    }
    return n;
}

int source_write(const struct language *lang, const char *code, size_t len, const char *tmp, struct source *ret,
                 struct abx_error *err)
{
    autofree char *clean = NULL;
    if (lang->unix_lines && memchr(code, '\r', len)) {
        clean = malloc(len);
        if (!clean)
            return abx_fail(err, E_NO_MEMORY, ENOMEM, "Out of memory");
        len = unix_lines(clean, code, len);
        code = clean;
    }
    if (!lang->file) {
        autoclose int fd = memfd_create("code", MFD_CLOEXEC);
        if (fd < 0 || write_all(fd, code, len) < 0 || lseek(fd, 0, SEEK_SET) < 0)
            return abx_fail_os(err, errno, NULL);
        *ret = (struct source){.fd = take_fd(&fd)};
        return 0;
    }
    char dir[4096], path[4200];
    int n = snprintf(dir, sizeof(dir), "%s/abx-code-XXXXXX", tmp);
    if (n < 0 || (size_t)n >= sizeof(dir))
        return abx_fail_os(err, ENAMETOOLONG, NULL);
    if (!mkdtemp(dir))
        return abx_fail_os(err, errno, tmp);
    struct source made = {.fd = -1, .dir = strdup(dir)};
    snprintf(path, sizeof(path), "%s/%s", dir, lang->file);
    autoclose int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (!made.dir || fd < 0 || write_all(fd, code, len) < 0) {
        int sys = made.dir ? errno : ENOMEM;
        (void)unlink(path);
        (void)rmdir(dir);
        free(made.dir);
        return abx_fail_os(err, sys, path);
    }
    *ret = made;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)remove(path); /* what resists is left to the system's cleaning of temporary files */
    return 0;
}

void source_remove(struct source *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    if (s->dir)
        (void)nftw(s->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(take_ptr(s->dir));
}

/* One word of a template: its length with the NUL, and the text when `to` is given. */
static size_t expand(char *to, const char *word, const char *dir)
{
    static const char mark[] = "{dir}";
    bool has = dir && strncmp(word, mark, sizeof(mark) - 1) == 0;
    const char *rest = has ? word + sizeof(mark) - 1 : word;
    size_t head = has ? strlen(dir) : 0, tail = strlen(rest) + 1;
    if (to) {
        if (has)
            memcpy(to, dir, head);
        memcpy(to + head, rest, tail);
    }
    return head + tail;
}

char **language_argv(const struct language *lang, const char *dir, char *const *args)
{
    size_t count = 0, bytes = 0;
    for (const char *const *w = lang->argv; *w; w++, count++)
        bytes += expand(NULL, *w, dir);
    bool has_args = args && *args;
    if (has_args && lang->before_args) {
        count++;
        bytes += strlen(lang->before_args) + 1;
    }
    for (char *const *w = args; w && *w; w++, count++)
        bytes += strlen(*w) + 1;
    char **argv = malloc((count + 1) * sizeof(*argv) + bytes);
    if (!argv)
        return NULL;
    char *text = (char *)(argv + count + 1);
    size_t at = 0;
    for (const char *const *w = lang->argv; *w; w++) {
        argv[at++] = text;
        text += expand(text, *w, dir);
    }
    if (has_args && lang->before_args) {
        argv[at++] = text;
        text += expand(text, lang->before_args, NULL);
    }
    for (char *const *w = args; w && *w; w++) {
        argv[at++] = text;
        text += expand(text, *w, NULL);
    }
    argv[at] = NULL;
    return argv;
}
