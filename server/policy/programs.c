#include "policy/programs.h"

#include "base/own.h"
#include "policy/guard.h"

#include <fcntl.h>
#include <string.h>

/* How it works: one table of names (globs, because interpreters carry versions) with a test for
 * each family. In doubt the answer is "yes": it costs an explicit rule in the policy, no more.
 * Copies under another name and programs of the user's own can't be recognised; docs/guards.md says
 * so. */

typedef bool (*family)(char *const *argv, size_t argc, const char *const *words);

struct known {
    const char *name; /* glob */
    family test;
    const char *const *words; /* what the test looks for */
};

#define WORDS(...)                                                                                 \
    (const char *const[]) { __VA_ARGS__, NULL }

/* Shells, launchers, job runners: always. */
static bool always(char *const *argv, size_t argc, const char *const *words) { return true; }

/* Programs that are harmless without certain options. A word ending in "=" also matches its value
 * glued on; a single-letter option ("-I") also matches with its value glued on. */
static bool with_option(char *const *argv, size_t argc, const char *const *words)
{
    for (size_t i = 1; i < argc; i++) {
        for (const char *const *w = words; *w; w++) {
            size_t n = strlen(*w);
            bool prefix = (*w)[n - 1] == '=' || (n == 2 && (*w)[0] == '-' && (*w)[1] != '-');
            if (strcmp(argv[i], *w) == 0 || (prefix && strncmp(argv[i], *w, n) == 0) ||
                ((*w)[n - 1] == '=' && strlen(argv[i]) == n - 1 &&
                 strncmp(argv[i], *w, n - 1) == 0))
                return true;
        }
    }
    return false;
}

/* Interpreters: fine with a file of the user's, not with code in an argument, a module name, or a
 * program read from standard input. */
static bool inline_code(char *const *argv, size_t argc, const char *const *words)
{
    static const char *const asks[] = {"--version", "-V", "-v", "--help", "-h"};
    if (argc == 2)
        for (size_t i = 0; i < ARRAY_LEN(asks); i++)
            if (strcmp(argv[1], asks[i]) == 0)
                return false;
    for (size_t i = 1; i < argc; i++) {
        if (argv[i][0] != '-')
            return !argv[i][0];
        size_t plain = strspn(argv[i] + 1, "uBIEsOqwW"); /* no value, no code */
        if (plain == 0 || argv[i][1 + plain])
            return true;
    }
    return true;
}

/* awk: system(), pipes, coprocesses, indirect calls and loaded extensions. */
static bool awk_code(char *const *argv, size_t argc, const char *const *words)
{
    for (size_t i = 1; i < argc; i++)
        if (strstr(argv[i], "system") || strpbrk(argv[i], "|@") || strcmp(argv[i], "-l") == 0 ||
            strncmp(argv[i], "--load", 6) == 0 || strcmp(argv[i], "-f") == 0 ||
            strncmp(argv[i], "--file", 6) == 0)
            return true;
    return false;
}

/* GNU sed runs commands by `e` and by the flag e of `s`. Looks for an e where a command or flags
 * may stand; over-cautious by design. */
static bool sed_code(char *const *argv, size_t argc, const char *const *words)
{
    for (size_t i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--sandbox") == 0)
            return false;
        if (strcmp(argv[i], "-f") == 0 || strncmp(argv[i], "--file", 6) == 0)
            return true;
    }
    for (size_t i = 1; i < argc; i++) {
        const char *text = argv[i];
        if (text[0] == '-' && text[1] != 'e' && strncmp(text, "--expression", 12) != 0)
            continue;
        if (text[0] == '-')
            text += text[1] == 'e' ? 2 : 12;
        for (const char *s = text; *s; s++) {
            if (*s != 'e')
                continue;
            bool starts = s == text || strchr(" \t\n;{}!0123456789$/=", s[-1]) ||
                          strchr("gpimIMw|,#@_:%+", s[-1]);
            bool ends = !s[1] || strchr(" \t\n;}", s[1]) || strchr("gpimIMw0123456789", s[1]);
            if (starts && ends)
                return true;
        }
    }
    return false;
}

static const struct known table[] = {
    /* shells */
    {"sh", always, NULL},
    {"bash", always, NULL},
    {"bash[0-9-]*", always, NULL},
    {"rbash", always, NULL},
    {"dash", always, NULL},
    {"ash", always, NULL},
    {"*ksh", always, NULL},
    {"ksh[0-9]*", always, NULL},
    {"zsh", always, NULL},
    {"zsh[0-9-]*", always, NULL},
    {"rzsh", always, NULL},
    {"fish", always, NULL},
    {"csh", always, NULL},
    {"tcsh", always, NULL},
    {"yash", always, NULL},
    {"pwsh", always, NULL},
    {"xonsh", always, NULL},
    {"nu", always, NULL},
    {"elvish", always, NULL},
    {"posh", always, NULL},
    /* launchers: run what follows */
    {"env", always, NULL},
    {"timeout", always, NULL},
    {"nice", always, NULL},
    {"ionice", always, NULL},
    {"chrt", always, NULL},
    {"taskset", always, NULL},
    {"numactl", always, NULL},
    {"nohup", always, NULL},
    {"setsid", always, NULL},
    {"stdbuf", always, NULL},
    {"unbuffer", always, NULL},
    {"time", always, NULL},
    {"xargs", always, NULL},
    {"parallel", always, NULL},
    {"watch", always, NULL},
    {"script", always, NULL},
    {"scriptlive", always, NULL},
    {"flock", always, NULL},
    {"prlimit", always, NULL},
    {"setpriv", always, NULL},
    {"setarch", always, NULL},
    {"linux32", always, NULL},
    {"linux64", always, NULL},
    {"i386", always, NULL},
    {"x86_64", always, NULL},
    {"uname26", always, NULL},
    {"capsh", always, NULL},
    {"unshare", always, NULL},
    {"nsenter", always, NULL},
    {"chroot", always, NULL},
    {"fakeroot*", always, NULL},
    {"fakechroot", always, NULL},
    {"proot", always, NULL},
    {"bwrap", always, NULL},
    {"firejail", always, NULL},
    {"pivot_root", always, NULL},
    {"switch_root", always, NULL},
    {"sudo", always, NULL},
    {"sudoedit", always, NULL},
    {"su", always, NULL},
    {"doas", always, NULL},
    {"pkexec", always, NULL},
    {"runuser", always, NULL},
    {"gosu", always, NULL},
    {"su-exec", always, NULL},
    {"sg", always, NULL},
    {"newgrp", always, NULL},
    {"run-parts", always, NULL},
    {"start-stop-daemon", always, NULL},
    {"daemon", always, NULL},
    {"systemd-run", always, NULL},
    {"dbus-run-session", always, NULL},
    {"dbus-launch", always, NULL},
    {"xvfb-run", always, NULL},
    {"ssh-agent", always, NULL},
    {"strace", always, NULL},
    {"ltrace", always, NULL},
    {"gdb", always, NULL},
    {"gdbserver", always, NULL},
    {"lldb*", always, NULL},
    {"valgrind*", always, NULL},
    {"perf", always, NULL},
    {"catchsegv", always, NULL},
    {"tini*", always, NULL},
    {"dumb-init", always, NULL},
    {"catatonit", always, NULL},
    {"s6-*", always, NULL},
    {"at", always, NULL},
    {"batch", always, NULL},
    {"crontab", always, NULL},
    {"entr", always, NULL},
    {"hyperfine", always, NULL},
    {"rlwrap", always, NULL},
    {"screen", always, NULL},
    {"tmux", always, NULL},
    {"dtach", always, NULL},
    {"abduco", always, NULL},
    {"expect", always, NULL},
    {"socat", always, NULL},
    {"busybox*", always, NULL},
    {"toybox*", always, NULL},
    {"coreutils", always, NULL},
    {"ld-linux*", always, NULL},
    {"ld-musl-*", always, NULL},
    {"ld.so", always, NULL},
    {"ld-[0-9]*.so", always, NULL},
    {"qemu-*", always, NULL},
    {"sem", always, NULL},
    {"chpst", always, NULL},
    {"softlimit", always, NULL},
    {"setuidgid", always, NULL},
    {"cpulimit", always, NULL},
    {"trickle", always, NULL},
    {"torsocks", always, NULL},
    {"proxychains*", always, NULL},
    {"eatmydata", always, NULL},
    {"faketime", always, NULL},
    {"ts-node", always, NULL},
    {"with-contenv", always, NULL},
    {"execlineb", always, NULL},
    /* build tools and package runners: run what a file of the project says */
    {"make", always, NULL},
    {"gmake", always, NULL},
    {"ninja", always, NULL},
    {"just", always, NULL},
    {"npx", always, NULL},
    {"bunx", always, NULL},
    {"uvx", always, NULL},
    {"pipx", always, NULL},
    {"npm", with_option,
     WORDS("exec", "x", "run", "run-script", "start", "stop", "restart", "test", "t", "explore",
           "edit")},
    {"pnpm", with_option, WORDS("exec", "dlx", "run", "start", "test")},
    {"yarn", with_option, WORDS("exec", "dlx", "run", "start", "test", "node")},
    {"cargo", with_option, WORDS("run", "r", "test", "t", "bench", "install")},
    {"go", with_option, WORDS("run", "test", "generate", "tool", "-exec", "-toolexec=")},
    {"uv", with_option, WORDS("run", "tool")},
    /* editors and pagers take commands */
    {"vi", always, NULL},
    {"vim*", always, NULL},
    {"nvim", always, NULL},
    {"view", always, NULL},
    {"ex", always, NULL},
    {"ed", always, NULL},
    {"emacs*", always, NULL},
    {"nano", always, NULL},
    {"man", always, NULL},
    {"less", always, NULL},
    {"more", always, NULL},
    /* interpreters */
    {"python", inline_code, NULL},
    {"python[0-9]*", inline_code, NULL},
    {"pypy*", inline_code, NULL},
    {"ipython*", always, NULL},
    {"perl", inline_code, NULL},
    {"perl[0-9]*", inline_code, NULL},
    {"ruby*", inline_code, NULL},
    {"irb*", always, NULL},
    {"node", inline_code, NULL},
    {"nodejs", inline_code, NULL},
    {"php*", inline_code, NULL},
    {"lua", inline_code, NULL},
    {"lua[0-9j]*", inline_code, NULL},
    {"tclsh*", inline_code, NULL},
    {"wish*", inline_code, NULL},
    {"guile*", inline_code, NULL},
    {"Rscript", inline_code, NULL},
    {"R", always, NULL},
    {"julia", inline_code, NULL},
    {"deno", always, NULL},
    {"bun", always, NULL},
    {"java", inline_code, NULL},
    {"jshell", always, NULL},
    {"osascript", always, NULL},
    {"gawk*", awk_code, NULL},
    {"mawk", awk_code, NULL},
    {"nawk", awk_code, NULL},
    {"awk", awk_code, NULL},
    {"original-awk", awk_code, NULL},
    {"sed", sed_code, NULL},
    {"gsed", sed_code, NULL},
    {"sqlite3", always, NULL},
    {"psql", always, NULL},
    {"mysql", always, NULL},
    /* harmless without these */
    {"find", with_option, WORDS("-exec", "-execdir", "-ok", "-okdir", "-delete")},
    {"fd", with_option, WORDS("-x", "-X", "--exec=", "--exec-batch=")},
    {"fdfind", with_option, WORDS("-x", "-X", "--exec=", "--exec-batch=")},
    {"rg", with_option, WORDS("--pre=", "--hostname-bin=")},
    {"tar", with_option,
     WORDS("--to-command=", "--checkpoint-action=", "-I", "--use-compress-program=", "-F",
           "--info-script=", "--new-volume-script=", "--rsh-command=", "--rmt-command=")},
    {"bsdtar", with_option, WORDS("--use-compress-program=")},
    {"cpio", with_option, WORDS("--rsh-command=")},
    {"zip", with_option, WORDS("-TT", "--unzip-command=")},
    {"git", with_option,
     WORDS("-c", "--config-env=", "--exec-path=", "-x",
           "--exec=", "--upload-pack=", "--receive-pack=", "-u", "--ext-diff", "--textconv",
           "bisect", "foreach", "difftool", "mergetool", "filter-branch", "config", "-O",
           "--open-files-in-pager=", "-p", "--paginate")},
    {"rsync", with_option, WORDS("-e", "--rsh=", "--rsync-path=")},
    {"ssh", always, NULL},
    {"scp", with_option, WORDS("-S", "-o")},
    {"sftp", with_option, WORDS("-S", "-o", "-b", "-D")},
    {"nc*", with_option, WORDS("-e", "-c", "--exec=", "--sh-exec=", "--lua-exec=")},
    {"ncat", with_option, WORDS("-e", "-c", "--exec=", "--sh-exec=", "--lua-exec=")},
    {"sort", with_option, WORDS("--compress-program=")},
    {"split", with_option, WORDS("--filter=")},
    {"tcpdump", with_option, WORDS("-z")},
    {"curl", with_option, WORDS("--engine=", "-K", "--config=")},
    {"wget", with_option, WORDS("--use-askpass=", "-e", "--execute=", "--config=")},
    {"apt*", with_option, WORDS("-o", "-c", "--option=", "--config-file=")},
    {"dpkg", with_option, WORDS("-i", "--install", "--pre-invoke=", "--post-invoke=")},
    {"cmake", with_option, WORDS("-P", "-E", "--build")},
    {"gcc*", with_option, WORDS("-wrapper", "-B", "-fplugin=", "-specs=")},
    {"openssl", with_option, WORDS("-engine", "-provider-path")},
    {"logrotate", always, NULL},
    {"inotifywatch", always, NULL},
    {"incrond", always, NULL},
};

bool program_is_multi_call(const char *base_name)
{
    static const char *const names[] = {"busybox*", "toybox*", "coreutils"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (guard_glob(names[i], base_name))
            return true;
    return false;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool name_runs_others(const char *name, char *const *argv, size_t argc)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (guard_glob(table[i].name, name) && table[i].test(argv, argc, table[i].words))
            return true;
    return false;
}

static bool lies_on(const char *search, const char *program)
{
    size_t dir = (size_t)(base_of(program) - program);
    for (const char *p = search; *p;) {
        size_t n = strcspn(p, ":");
        if (n + 1 == dir && strncmp(p, program, n) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

/* A script that a shell or a launcher reads is that shell. One that an interpreter reads is a file
 * of the user's, as "python3 x.py" is. */
static bool script_of_shell(const char *program)
{
    char line[256];
    autoclose int fd = open(program, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (n < 2)
        return n < 0; /* can't be read, so can't be judged */
    if (line[0] != '#' || line[1] != '!')
        /* execvp runs a text without #! by /bin/sh; posix_spawn doesn't. ELF and friends pass. */
        return false;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';

    char *save = NULL, *word = strtok_r(line + 2, " \t", &save);
    if (word && strcmp(base_of(word), "env") == 0) /* "env [-S] [A=B] python3 -u" */
        do
            word = strtok_r(NULL, " \t", &save);
        while (word && (word[0] == '-' || strchr(word, '=')));
    if (!word)
        return true;
    char *argv[] = {word, "script"};
    return name_runs_others(base_of(word), argv, 2);
}

bool program_runs_others(char *const *argv, size_t argc, const char *program, const char *real,
                         const char *search)
{
    if (name_runs_others(base_of(argv[0]), argv, argc))
        return true;
    if (!program)
        return false;
    if (name_runs_others(base_of(program), argv, argc))
        return true;
    if (real && !program_is_multi_call(base_of(real)) &&
        name_runs_others(base_of(real), argv, argc))
        return true;
    return !lies_on(search, program) && script_of_shell(program);
}
