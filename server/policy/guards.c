#include "policy/guards.h"

#include "base/buf.h"
#include "base/num.h"
#include "base/own.h"
#include "policy/programs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ARGS 256
#define MAX_ARG_CHARS 4096
#define MAX_ARG_BYTES (4 * MAX_ARG_CHARS)
#define MAX_SCRIPT_BYTES (32 * 4096) /* the kernel's bound for one word, its NUL included */
#define MAX_ELLIPSES 3

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
}

static int too_many_args(struct abx_error *err)
{
    return abx_fail(err, E_COMMAND_INVALID, 0, "Over %d arguments", MAX_ARGS);
}

static int arg_too_long(struct abx_error *err)
{
    return abx_fail(err, E_COMMAND_INVALID, 0, "An argument has over %d characters", MAX_ARG_CHARS);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* --- splitting -------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

int command_split(const char *text, size_t len, struct arena *arena, char ***ret_argv,
                  size_t *ret_argc, struct abx_error *err)
{
    if (memchr(text, '\0', len)) {
        static const char blanks[] = " \t\r\n";
        const char *word = text + strspn(text, blanks);
        if (word[strcspn(word, blanks)] == '\0')
            return abx_fail(err, E_PROCESS_INVALID, 0, "The program name contains a NUL byte");
        return abx_fail(err, E_COMMAND_INVALID, 0, "Command contains a NUL byte");
    }

    /* Words are at least one byte and a blank apart; their texts together are no longer than the
     * input and one NUL each. What is over the limits ends here, before anybody copies it. */
    size_t max_words = len / 2 + 1;
    if (max_words > MAX_ARGS + 1)
        max_words = MAX_ARGS + 1;
    char **argv = arena_alloc(arena, (max_words + 1) * sizeof *argv);
    char *at = arena_alloc(arena, len + max_words + 1);
    if (!argv || !at)
        return no_memory(err);

    size_t argc = 0;
    char quote = 0;
    bool in_word = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (!quote && is_blank(c)) {
            if (in_word)
                *at++ = '\0';
            in_word = false;
            continue;
        }
        if (!in_word) {
            if (argc == MAX_ARGS)
                return too_many_args(err);
            argv[argc++] = at;
            in_word = true;
        } else if (at - argv[argc - 1] > MAX_ARG_BYTES) {
            return arg_too_long(err);
        }
        if (c == '\\' && quote != '\'') {
            if (++i == len)
                return abx_fail(err, E_VALUE, 0, "No escaped character");
            if (quote && text[i] != '"' && text[i] != '\\')
                *at++ = '\\';
            *at++ = text[i];
        } else if (c == quote) {
            quote = 0;
        } else if (!quote && (c == '\'' || c == '"')) {
            quote = c;
        } else {
            *at++ = c;
        }
    }
    if (quote)
        return abx_fail(err, E_VALUE, 0, "No closing quotation");
    if (in_word)
        *at = '\0';
    argv[argc] = NULL;
    *ret_argv = argv;
    *ret_argc = argc;
    return 0;
}

/* --- patterns --------------------------------------------------------------------------------- */

static bool has_glob(const char *word) { return strpbrk(word, "*?[") != NULL; }

static bool is_ellipsis(const char *word) { return strcmp(word, "...") == 0; }

static bool is_placeholder(const char *word)
{
    return word[0] == '{' && word[strlen(word) - 1] == '}';
}

static int check_pattern(const char *pattern, struct arena *arena, struct abx_error *err)
{
    char **words;
    size_t n, ellipses = 0;
    struct abx_error why;
    if (command_split(pattern, strlen(pattern), arena, &words, &n, &why) < 0)
        return abx_fail(err, E_VALUE, 0, "invalid command pattern '%.200s': %s", pattern,
                        why.message);
    if (n == 0 || !*words[0])
        return abx_fail(err, E_VALUE, 0, "a command pattern must name a program");
    if (n > MAX_ARGS)
        return abx_fail(err, E_VALUE, 0, "command pattern '%.200s' has over %d words", pattern,
                        MAX_ARGS);
    if (is_ellipsis(words[0]) || is_placeholder(words[0]))
        return abx_fail(err, E_VALUE, 0, "command pattern '%.200s' must begin with a program",
                        pattern);
    for (size_t i = 1; i < n; i++) {
        ellipses += is_ellipsis(words[i]);
        if (is_placeholder(words[i]) && strcmp(words[i], "{int}") != 0 &&
            strcmp(words[i], "{word}") != 0 && strcmp(words[i], "{path}") != 0)
            return abx_fail(
                err, E_VALUE, 0,
                "unknown placeholder '%.100s' in a command pattern; known: {int}, {path}, "
                "{word}",
                words[i]);
    }
    if (ellipses > MAX_ELLIPSES)
        return abx_fail(err, E_VALUE, 0, "command pattern '%.200s' has over %d '...'", pattern,
                        MAX_ELLIPSES);
    return 0;
}

int command_patterns_check(const struct str_list *patterns, struct abx_error *err)
{
    struct arena arena;
    arena_init(&arena);
    int rc = 0;
    for (size_t i = 0; patterns && i < patterns->n && rc == 0; i++)
        rc = check_pattern(patterns->items[i], &arena, err);
    arena_done(&arena);
    return rc;
}

static bool is_int_word(const char *s)
{
    size_t n = 0;
    while (is_digit(s[n]))
        n++;
    return n >= 1 && n <= 9 && !s[n];
}

static bool is_plain_word(const char *s)
{
    if (!is_letter(*s) && !is_digit(*s) && *s != '_')
        return false;
    for (s++; *s; s++)
        if (!is_letter(*s) && !is_digit(*s) && !strchr("_.@:+=,-", *s))
            return false;
    return true;
}

/* A glob takes no argument that reaches elsewhere unless it says so itself. */
static bool glob_takes(const char *word, const char *arg)
{
    if ((strchr(arg, '/') && !strchr(word, '/')) || (strstr(arg, "..") && !strstr(word, "..")) ||
        (arg[0] == '-' && word[0] != '-'))
        return false;
    return guard_glob(word, arg);
}

/* What is asked, and what is known about it. */
struct question {
    char **argv; /* as it will run */
    size_t argc;
    char **seen; /* argv with grouped short flags split: what patterns look at */
    size_t n_seen;
    bool split;          /* seen differs from argv */
    const char *program; /* absolute, or NULL: nothing found */
    const char *real;    /* program with links followed */
    struct stat st;      /* of program; st_ino 0 when unknown */
    const char *search;  /* the server's own PATH */
    const char *cwd;
    const struct guard *guard;
    struct arena *arena;
    /* {path}: each seen word is judged once. */
    const char **resolved; /* canonical path, or NULL */
    bool *judged;
    struct abx_error refusal; /* the first one by the guard; kind is valid when refused */
    bool refused;
};

/* One pattern being matched. */
struct attempt {
    struct question *q;
    char **words;
    size_t n_words;
    bool structural;      /* deny rules: {path} takes any path, judged or not */
    unsigned char *dead;  /* (word, arg) pairs known to fail */
    unsigned char *taken; /* per arg: it was taken for {path} */
};

static bool path_ok(struct question *q, size_t i)
{
    if (!q->judged[i]) {
        struct guard_path path;
        struct abx_error why;
        q->judged[i] = true;
        if (guard_check(q->guard, q->seen[i], strlen(q->seen[i]), q->cwd, OP_EXEC, q->arena, &path,
                        &why) == 0) {
            q->resolved[i] = path.resolved;
        } else if (!q->refused) {
            q->refusal = why;
            q->refused = true;
        }
    }
    return q->resolved[i] != NULL;
}

static bool word_takes(struct attempt *a, const char *word, size_t i)
{
    const char *arg = a->q->seen[i];
    if (strcmp(word, "{int}") == 0)
        return is_int_word(arg);
    if (strcmp(word, "{word}") == 0)
        return is_plain_word(arg);
    if (strcmp(word, "{path}") == 0) {
        if (!*arg || *arg == '-')
            return false;
        if (a->structural)
            return true;
        return !a->q->split && path_ok(a->q, i);
    }
    return has_glob(word) ? glob_takes(word, arg) : strcmp(word, arg) == 0;
}

/* Words from w on against arguments from i on. */
static bool match_from(struct attempt *a, size_t w, size_t i)
{
    if (w == a->n_words)
        return i == a->q->n_seen;
    size_t slot = w * (a->q->n_seen + 1) + i;
    if (a->dead[slot])
        return false;
    if (is_ellipsis(a->words[w])) {
        for (size_t next = i; next <= a->q->n_seen; next++)
            if (match_from(a, w + 1, next))
                return true;
    } else if (i < a->q->n_seen && word_takes(a, a->words[w], i) && match_from(a, w + 1, i + 1)) {
        a->taken[i] = strcmp(a->words[w], "{path}") == 0;
        return true;
    }
    a->dead[slot] = 1;
    return false;
}

/* Returns 1, 0, or -1 (no memory). */
static int match_words(struct attempt *a)
{
    a->dead = arena_zalloc(a->q->arena, (a->n_words + 1) * (a->q->n_seen + 1));
    a->taken = arena_zalloc(a->q->arena, a->q->n_seen + 1);
    if (!a->dead || !a->taken)
        return -1;
    return match_from(a, 1, 1);
}

/* --- which program ---------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino != 0 && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_runnable(const char *path, struct stat *st)
{
    return stat(path, st) == 0 && S_ISREG(st->st_mode) && access(path, X_OK) == 0;
}

/* The file a bare name means on the server's own PATH. Relative entries of PATH are not looked at:
 * they mean another place for each caller. Returns 1, 0 or -1. */
static int own_lookup(const struct question *q, const char *name, struct stat *st)
{
    for (const char *p = q->search; *p;) {
        size_t n = strcspn(p, ":");
        if (n > 0 && *p == '/') {
            const char *path = arena_printf(q->arena, "%.*s/%s", (int)n, p, name);
            if (!path)
                return -1;
            if (is_runnable(path, st))
                return 1;
        }
        p += n + (p[n] == ':');
    }
    return 0;
}

/* Is this the file that its own base name means? Else it is a stranger of that name. */
static int is_the_known(const struct question *q, const char *name)
{
    struct stat st;
    int found = own_lookup(q, name, &st);
    return found <= 0 ? found : same_file(&q->st, &st);
}

/* First word of an allow rule. A bare word means the program of that name on the server's PATH,
 * however it is spelled; a word with a slash means exactly that path. Returns 1, 0 or -1. */
static int program_allowed(const struct question *q, const char *word)
{
    const char *arg = q->argv[0];
    if (strchr(word, '/')) {
        if (strcmp(word, arg) == 0)
            return 1;
        return has_glob(word) && !strstr(arg, "..") && guard_glob(word, arg);
    }
    const char *name = base_name(arg);
    if (!guard_glob(word, name))
        return 0;
    if (!q->program)
        return !strchr(arg, '/'); /* not installed: the spawn will say so */
    return is_the_known(q, name);
}

/* First word of a deny rule: any name of the file counts. Returns 1, 0 or -1. */
static int program_denied(const struct question *q, const char *word)
{
    const char *names[] = {q->argv[0], base_name(q->argv[0]),
                           q->program, q->program ? base_name(q->program) : NULL,
                           NULL,       NULL};
    /* One file with many names (busybox): only the name it is called by says what it does. */
    bool multi = q->real && program_is_multi_call(base_name(q->real));
    if (q->real && (!multi || strcmp(base_name(q->real), base_name(q->argv[0])) == 0)) {
        names[4] = q->real;
        names[5] = base_name(q->real);
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i] && (strcmp(word, names[i]) == 0 || guard_glob(word, names[i])))
            return 1;
    if (multi || has_glob(word) || q->st.st_ino == 0)
        return 0;
    struct stat st; /* a hard link, or another link to what the rule means */
    if (strchr(word, '/'))
        return stat(word, &st) == 0 && same_file(&q->st, &st);
    int found = own_lookup(q, word, &st);
    return found <= 0 ? found : same_file(&q->st, &st);
}

/* --- judging ---------------------------------------------------------------------------------- */

/* Returns 1, 0 or -1. On 1 with allow, words taken for {path} are replaced in argv. */
static int match_pattern(struct question *q, const char *pattern, bool deny)
{
    struct attempt a = {.q = q, .structural = deny};
    struct abx_error ignored; /* patterns were checked at load; a broken one matches nothing */
    if (command_split(pattern, strlen(pattern), q->arena, &a.words, &a.n_words, &ignored) < 0)
        return ignored.kind == E_NO_MEMORY ? -1 : deny;
    if (a.n_words == 0)
        return deny;
    int program = deny ? program_denied(q, a.words[0]) : program_allowed(q, a.words[0]);
    if (program <= 0 || a.n_words == 1)
        return program;
    int hit = match_words(&a);
    if (hit == 1 && !deny && !q->split)
        for (size_t i = 1; i < q->argc; i++)
            if (a.taken[i])
                q->argv[i] = (char *)q->resolved[i];
    return hit;
}

static bool is_flag_group(const char *arg)
{
    if (arg[0] != '-' || !is_letter(arg[1]) || !arg[2])
        return false;
    for (const char *s = arg + 1; *s; s++)
        if (!is_letter(*s))
            return false;
    return true;
}

static int split_flags(struct question *q)
{
    size_t n = q->argc;
    for (size_t i = 1; i < q->argc; i++)
        if (is_flag_group(q->argv[i]))
            n += strlen(q->argv[i]) - 2;
    q->seen = arena_alloc(q->arena, (n + 1) * sizeof *q->seen);
    q->resolved = arena_zalloc(q->arena, (n + 1) * sizeof *q->resolved);
    q->judged = arena_zalloc(q->arena, (n + 1) * sizeof *q->judged);
    if (!q->seen || !q->resolved || !q->judged)
        return -1;
    q->n_seen = 0;
    for (size_t i = 0; i < q->argc; i++) {
        if (i == 0 || !is_flag_group(q->argv[i])) {
            q->seen[q->n_seen++] = q->argv[i];
            continue;
        }
        q->split = true;
        for (const char *s = q->argv[i] + 1; *s; s++) {
            char *flag = arena_printf(q->arena, "-%c", *s);
            if (!flag)
                return -1;
            q->seen[q->n_seen++] = flag;
        }
    }
    q->seen[q->n_seen] = NULL;
    return 0;
}

static int denied(const char *what, struct abx_error *err)
{
    return abx_fail(err, E_COMMAND_NOT_ALLOWED, 0, "Command '%.200s' is denied by policy", what);
}

/* Any word inside the arguments that names a denied program: for wrappers that are allowed by name.
 */
static int mentions_denied(struct question *q, const struct str_list *deny)
{
    for (size_t i = 1; i < q->argc; i++) {
        for (const char *s = q->argv[i]; *s;) {
            size_t n = strcspn(s, " \t\r\n;|&(){}<>\"'`$=,\\/");
            if (n > 0) {
                const char *word = arena_strndup(q->arena, s, n);
                if (!word)
                    return -1;
                for (size_t d = 0; d < deny->n; d++) {
                    char **rule;
                    size_t words;
                    if (command_split(deny->items[d], strlen(deny->items[d]), q->arena, &rule,
                                      &words, NULL) == 0 &&
                        words > 0 && guard_glob(base_name(rule[0]), word))
                        return 1;
                }
            }
            s += n + (s[n] != '\0');
        }
    }
    return 0;
}

/* Allow rules whose program is spelled out: the author meant just this one. */
static int explicitly_allowed(struct question *q, const struct str_list *allow)
{
    for (size_t i = 0; allow && i < allow->n; i++) {
        char **words;
        size_t n;
        if (command_split(allow->items[i], strlen(allow->items[i]), q->arena, &words, &n, NULL) <
                0 ||
            n == 0 || has_glob(words[0]))
            continue;
        int hit = match_pattern(q, allow->items[i], false);
        if (hit != 0)
            return hit;
    }
    return 0;
}

static int judge(struct question *q, const struct str_list *allow, const struct str_list *deny,
                 struct abx_error *err)
{
    for (size_t i = 0; deny && i < deny->n; i++) {
        int hit = match_pattern(q, deny->items[i], true);
        if (hit < 0)
            return no_memory(err);
        if (hit)
            return denied(q->argv[0], err);
    }

    bool everything = !deny && allow && allow->n == 1 && strcmp(allow->items[0], "*") == 0;
    if (!everything && program_runs_others(q->argv, q->argc, q->program, q->real, q->search)) {
        int hit = explicitly_allowed(q, allow);
        if (hit > 0 && deny)
            hit = mentions_denied(q, deny) == 0;
        if (hit < 0)
            return no_memory(err);
        if (!hit && q->refused)
            goto refused;
        if (!hit)
            return abx_fail(
                err, E_COMMAND_NOT_ALLOWED, 0,
                "Command '%.200s' can start other programs, so it must be allowed by name",
                q->argv[0]);
        return 0;
    }

    if (!allow)
        return 0;
    for (size_t i = 0; i < allow->n; i++) {
        int hit = match_pattern(q, allow->items[i], false);
        if (hit < 0)
            return no_memory(err);
        if (hit)
            return 0;
    }
    if (!q->refused)
        return abx_fail(err, E_COMMAND_NOT_ALLOWED, 0, "Command '%.200s' is not in the allow-list",
                        q->argv[0]);
refused:
    if (err)
        *err = q->refusal;
    return abx_prefix(err, "argv: ");
}

/* NULL when not set, or empty: an empty list limits nothing. */
static const struct str_list *list_of(const struct rule *rule, enum param p)
{
    bool set = (rule->params_set & 1u << p) && rule->list[p].n > 0;
    return set ? &rule->list[p] : NULL;
}

static const char *server_path(void)
{
    const char *path = getenv("PATH"); /* never changed after start: children have their own map */
    return path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

static int check_command(const struct rule *rule, char **argv, size_t argc, size_t n_words, const char *program,
                         const char *cwd, struct arena *arena, struct abx_error *err)
{
    if (argc == 0 || !*argv[0])
        return abx_fail(err, E_COMMAND_INVALID, 0, "The command is empty");
    if (argc > MAX_ARGS)
        return too_many_args(err);
    for (size_t i = 0; i < n_words; i++)
        if (guard_text_chars(argv[i], strlen(argv[i])) > MAX_ARG_CHARS)
            return arg_too_long(err);

    const struct str_list *allow = list_of(rule, PARAM_allow_commands);
    const struct str_list *deny = list_of(rule, PARAM_deny_commands);
    if (!allow && !deny)
        return 0;

    struct question q = {.argv = argv,
                         .argc = argc,
                         .program = program,
                         .search = server_path(),
                         .cwd = cwd,
                         .guard = rule->guard,
                         .arena = arena};
    if (split_flags(&q) < 0)
        return no_memory(err);
    if (program && stat(program, &q.st) < 0)
        q.st = (struct stat){0};
    autofree char *real = program ? realpath(program, NULL) : NULL;
    q.real = real;
    return judge(&q, allow, deny, err);
}

int command_check(const struct rule *rule, char **argv, size_t argc, const char *program, const char *cwd,
                  struct arena *arena, struct abx_error *err)
{
    return check_command(rule, argv, argc, argc, program, cwd, arena, err);
}

int command_check_script(const struct rule *rule, char **argv, size_t argc, const char *program, const char *cwd,
                         struct arena *arena, struct abx_error *err)
{
    size_t n = argc - 1;
    if (strlen(argv[n]) >= MAX_SCRIPT_BYTES)
        return abx_fail(err, E_COMMAND_INVALID, 0, "The script has over %d bytes; a shell also reads one from 'input'",
                        MAX_SCRIPT_BYTES - 1);
    return check_command(rule, argv, argc, n, program, cwd, arena, err);
}

bool command_is_limited(const struct rule *rule)
{
    return list_of(rule, PARAM_allow_commands) || list_of(rule, PARAM_deny_commands);
}

/* --- programs --------------------------------------------------------------------------------- */

static int refuse_protected(const char *name, const char *path, struct arena *arena,
                            struct abx_error *err)
{
    int hit = guard_is_system_path(path, arena);
    if (hit < 0)
        return no_memory(err);
    if (hit)
        return abx_fail(err, E_PROCESS_DENIED, 0,
                        "Executable '%.200s' resolves under a protected directory", name);
    return 0;
}

int program_resolve(const char *name, const char *search_path, const char *cwd, struct arena *arena,
                    const char **ret, struct abx_error *err)
{
    if (!*name)
        return abx_fail(err, E_PROCESS_INVALID, 0, "The program name is empty");
    const char *from = cwd ? cwd : "/";
    struct stat st;
    if (strchr(name, '/')) {
        const char *path = name[0] == '/' ? arena_strdup(arena, name)
                                          : arena_printf(arena, "%s/%s", from[1] ? from : "", name);
        if (!path)
            return no_memory(err);
        if (refuse_protected(name, path, arena, err) < 0)
            return -1;
        *ret = stat(path, &st) == 0 ? path : NULL;
        return 0;
    }

    const char *search = search_path ? search_path : server_path();
    const char *second_best = NULL; /* there, but can't be executed: the spawn tells why */
    for (const char *p = search;; p++) {
        size_t n = strcspn(p, ":");
        const char *path;
        if (n > 0 && *p == '/')
            path = arena_printf(arena, "%.*s/%s", (int)n, p, name);
        else
            path = arena_printf(arena, "%s/%.*s%s%s", from[1] ? from : "", (int)n, p, n ? "/" : "",
                                name);
        if (!path)
            return no_memory(err);
        if (is_runnable(path, &st)) {
            if (refuse_protected(name, path, arena, err) < 0)
                return -1;
            *ret = path;
            return 0;
        }
        if (!second_best && stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
            second_best = path;
        p += n;
        if (!*p)
            break;
    }
    if (second_best && refuse_protected(name, second_best, arena, err) < 0)
        return -1;
    *ret = second_best;
    return 0;
}

/* --- environment ------------------------------------------------------------------------------ */

static bool is_env_name(const char *name, size_t len)
{
    if (len == 0 || strlen(name) != len || is_digit(*name))
        return false;
    for (; *name; name++)
        if (!is_letter(*name) && !is_digit(*name) && *name != '_')
            return false;
    return true;
}

int env_guard_check(const json_t *vars, struct abx_error *err)
{
    if (!vars)
        return 0;
    if (!json_is_object(vars))
        return abx_fail(err, E_ENV_INVALID, 0,
                        "Environment must be an object of names and strings");
    const char *name;
    size_t len;
    json_t *value;
    json_object_keylen_foreach((json_t *)vars, name, len, value)
    {
        if (!is_env_name(name, len) || !json_is_string(value) ||
            strlen(json_string_value(value)) != json_string_length(value))
            return abx_fail(err, E_ENV_INVALID, 0, "Invalid environment assignment '%.200s'", name);
        if (len + json_string_length(value) + 2 > ENV_STRING_MAX)
            return abx_fail(err, E_ENV_INVALID, 0,
                            "Environment variable '%.100s' is too large: with its name at most %d bytes",
                            name, ENV_STRING_MAX - 2);
        if (strncasecmp(name, "ABX_", 4) == 0)
            return abx_fail(err, E_ENV_DENIED, 0,
                            "Environment variable '%.200s' cannot be overwritten", name);
    }
    return 0;
}

static int refuse_names(const json_t *vars, bool (*refused)(const void *data, const char *name),
                        const void *data, struct abx_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)vars, name, value)
    {
        if (refused(data, name))
            return abx_fail(err, E_ENV_NOT_ALLOWED, 0,
                            "Environment variable(s) not allowed: ['%.200s']", name);
    }
    return 0;
}

static bool is_secret(const void *env, const char *name) { return env_is_secret_name(env, name); }

int env_guard_secrets(const json_t *vars, const struct env_map *env, struct abx_error *err)
{
    return refuse_names(vars, is_secret, env, err);
}

static bool redirects_programs(const void *unused, const char *name)
{
    return strcmp(name, "PATH") == 0 || env_is_loader_name(name);
}

int env_guard_commands(const json_t *vars, const struct rule *rule, struct abx_error *err)
{
    return command_is_limited(rule) ? refuse_names(vars, redirects_programs, NULL, err) : 0;
}

bool env_is_loader_name(const char *name)
{
    /* Search paths of libraries (PYTHONPATH, NODE_PATH, ...) are not here: they are everyday
     * settings, and run nothing by themselves unless a file is planted where they point. */
    static const char *const prefixes[] = {"LD_", "DYLD_", "BASH_FUNC_", "GIT_CONFIG", "LUA_INIT"};
    static const char *const names[] = {
        "BASH_ENV",
        "BASHOPTS",
        "ENV",
        "FPATH",
        "GCONV_PATH",
        "GIT_ASKPASS",
        "GIT_EDITOR",
        "GIT_EXEC_PATH",
        "GIT_EXTERNAL_DIFF",
        "GIT_PAGER",
        "GIT_PROXY_COMMAND",
        "GIT_SEQUENCE_EDITOR",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_TEMPLATE_DIR",
        "GLIBC_TUNABLES",
        "IFS",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "LESSCLOSE",
        "LESSOPEN",
        "NODE_OPTIONS",
        "PERL5DB",
        "PERL5OPT",
        "PHPRC",
        "PHP_INI_SCAN_DIR",
        "PROMPT_COMMAND",
        "PS4",
        "PYTHONBREAKPOINT",
        "PYTHONHOME",
        "PYTHONINSPECT",
        "PYTHONSTARTUP",
        "RUBYOPT",
        "SHELLOPTS",
        "SSH_ASKPASS",
        "ZDOTDIR",
        "_JAVA_OPTIONS",
    };
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}
