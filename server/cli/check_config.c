/* check-config: reads the policy that `serve` would use, and says what it means. Exit: 0 fine, 1 invalid policy,
 * 2 usage error or warnings with --strict, 3 --explain answers no. */

#include "cli/cli.h"

#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "policy/policy.h"
#include "routes/commands.h"

#include <stdio.h>
#include <string.h>

enum { EXIT_WARNINGS = 2, EXIT_NOT_ALLOWED = 3 };

static const char usage[] = "abx-server check-config [--policy FILE] [--preset NAME] [--explain ENDPOINT] [OPTIONS]";
static const char help[] =
    "usage: abx-server check-config [OPTIONS]\n"
    "\n"
    "Reads the policy that `serve` would use, checks it and prints what it means.\n"
    "\n"
    "  --policy FILE       policy file, JSON or YAML (.yaml, .yml)\n"
    "  --preset NAME       default, transfer-only, read-only, hardened or locked\n"
    "  --commands FILE     the template's commands, whose routes the policy may name; repeatable\n"
    "  --json              print for machines\n"
    "  --strict            exit 2 when there are warnings\n"
    "  --explain ENDPOINT  may this endpoint be called? exit 3 when not\n"
    "  --path P            with --explain: and on this path?\n"
    "  --scopes a,b        with --explain: by a caller with these scopes (*)\n"
    "  --op OP             with --explain: read, write, delete or exec\n"
    "\n"
    "Exit: 0 fine, 1 invalid, 2 usage error or --strict with warnings, 3 --explain says no.\n";

static const struct option options[] = {
    {"policy", required_argument, NULL, 'y'},   {"preset", required_argument, NULL, 's'},
    {"commands", required_argument, NULL, 'c'}, {"json", no_argument, NULL, 'j'},
    {"strict", no_argument, NULL, 't'},         {"explain", required_argument, NULL, 'e'},
    {"path", required_argument, NULL, 'p'},     {"scopes", required_argument, NULL, 'o'},
    {"op", required_argument, NULL, 'x'},       {"help", no_argument, NULL, 'h'},
    {0}};

struct settings {
    struct policy_source policy;
    const char *explain, *path, *scopes, *op;
    char **commands; /* NULL-terminated */
    size_t n_commands;
    bool json, strict;
};

static bool is_op(const char *op)
{
    return strcmp(op, "read") == 0 || strcmp(op, "write") == 0 || strcmp(op, "delete") == 0 ||
           strcmp(op, "exec") == 0;
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct settings *s)
{
    s->commands = calloc((size_t)argc + 1, sizeof(*s->commands));
    if (!s->commands)
        return EXIT_FAILED;
    for (int c; (c = cli_option(argc, argv, options, usage)) != -1;) {
        switch (c) {
        case 'y':
            s->policy.file = optarg;
            break;
        case 's':
            s->policy.preset = optarg;
            break;
        case 'c':
            s->commands[s->n_commands++] = optarg;
            break;
        case 'j':
            s->json = true;
            break;
        case 't':
            s->strict = true;
            break;
        case 'e':
            s->explain = optarg;
            break;
        case 'p':
            s->path = optarg;
            break;
        case 'o':
            s->scopes = optarg;
            break;
        case 'x':
            if (!is_op(optarg)) {
                fprintf(stderr, "usage: %s\nabx-server: --op must be read, write, delete or exec, not '%s'\n",
                        usage, optarg);
                return EXIT_USAGE;
            }
            s->op = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return EXIT_OK;
        default:
            return EXIT_USAGE;
        }
    }
    return -1;
}

static int policy_error(const struct abx_error *err)
{
    fprintf(stderr, "policy error: %s\n", err->message);
    return 1;
}

static int out_of_memory(void)
{
    return policy_error(&(struct abx_error){.message = "out of memory"});
}

/* What serve has too, as far as the commands files need it. */
struct host_world {
    struct loop *loop;
    struct spawner *spawner;
    struct env_map *env;
    struct registry *registry;
    bool stopped;
};

static int load_commands(struct host_world *w, const struct settings *s, const struct policy_doc *doc,
                         struct abx_error *err)
{
    w->loop = loop_new();
    w->spawner = w->loop ? spawner_new(w->loop) : NULL;
    w->env = w->spawner ? cli_child_environment(doc) : NULL;
    if (!w->env)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    struct registry_config config = {
        .loop = w->loop, .spawner = w->spawner, .env = w->env, .files = s->commands};
    config.taken = commands_taken(&config.n_taken);
    if (registry_new(&config, &w->registry, err) < 0)
        return -1;
    return registry_wait(w->registry, err);
}

static void hosts_stopped(void *data)
{
    struct host_world *w = data;
    w->stopped = true;
    uv_stop(loop_uv(w->loop)); /* the turn that says so may have nothing else to wait for */
}

static void host_world_done(struct host_world *w)
{
    if (w->registry) {
        registry_stop(w->registry);
        registry_unref(w->registry);
    }
    if (w->spawner)
        spawner_stop(w->spawner, 0, hosts_stopped, w);
    while (w->spawner && !w->stopped) /* workers still look for what belongs to the hosts: the spawner outlives them */
        uv_run(loop_uv(w->loop), UV_RUN_ONCE);
    if (w->loop)
        uv_run(loop_uv(w->loop), UV_RUN_NOWAIT); /* what ends a turn later */
    spawner_free(w->spawner);
    loop_free(w->loop);
    env_free(w->env);
}

static int print_json(const json_t *value)
{
    autobuf struct buf out = BUF_INIT;

    if (!value)
        return -1;
    json_write_pretty(&out, value);
    buf_addc(&out, '\n');
    return out.failed || fwrite(out.data, 1, out.len, stdout) != out.len ? -1 : 0;
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int explain(const struct policy *p, const struct settings *o)
{
    autofree char *scopes = strdup(o->scopes ? o->scopes : "*");
    autofree const char **items = calloc(scopes ? strlen(scopes) + 1 : 1, sizeof(*items));
    struct identity who = {.id = "explain", .scopes = {0, items}};
    struct abx_error err;
    char *rest = NULL;

    if (!scopes || !items)
        return out_of_memory();
    for (char *word = strtok_r(scopes, ", \t", &rest); word; word = strtok_r(NULL, ", \t", &rest))
        items[who.scopes.n++] = word;
    qsort(items, who.scopes.n, sizeof(*items), compare_words);

    autojson json_t *body = json_pack("{s:o, s:o, s:s?}", "endpoint", json_text(o->explain), "path",
                                      json_text(o->path), "op", o->op);
    autojson json_t *answer = body ? policy_check(p, &who, body, &err) : NULL;
    if (!body)
        return out_of_memory();
    if (!answer)
        return policy_error(&err);
    if (print_json(answer) < 0)
        return out_of_memory();
    return json_is_true(json_object_get(answer, "allowed")) ? EXIT_OK : EXIT_NOT_ALLOWED;
}

static int describe(const struct policy *p, const struct settings *o)
{
    autojson json_t *warnings = policy_lint(p, o->policy.file);

    if (!warnings)
        return out_of_memory();
    if (o->json) {
        autojson json_t *value = policy_describe_json(p, warnings);
        if (print_json(value) < 0)
            return out_of_memory();
    } else {
        autobuf struct buf out = BUF_INIT;
        policy_describe(p, warnings, &out);
        if (out.failed || fwrite(out.data, 1, out.len, stdout) != out.len)
            return out_of_memory();
    }
    return o->strict && json_array_size(warnings) > 0 ? EXIT_WARNINGS : EXIT_OK;
}

static int check(struct host_world *w, const struct settings *s, const struct policy_doc *doc)
{
    const char *base = getenv("ABX_SERVER_BASE_DIR");
    struct policy_inputs in = {.doc = (struct policy_doc *)doc, /* only read */
                               .enabled_groups = getenv("ABX_SERVER_ENABLED_GROUPS"),
                               .base_dir = base && *base == '/' ? base : NULL};
    struct site *site;
    struct abx_error err;

    if (s->n_commands && load_commands(w, s, doc, &err) < 0) {
        fprintf(stderr, "abx-server: %s\n", err.message);
        return EXIT_FAILED;
    }
    if (commands_site(w->registry, &in, &site, &err) < 0)
        return policy_error(&err);
    int rc = s->explain ? explain(site_policy(site), s) : describe(site_policy(site), s);
    site_unref(site);
    return rc;
}

int cli_check_config(int argc, char **argv)
{
    struct settings s = {0};
    struct host_world world = {0};
    struct policy_doc *doc;
    struct abx_error err;
    int rc = parse_options(argc, argv, &s);

    if (rc >= 0) {
        free(s.commands);
        return rc;
    }
    if (policy_doc_resolve(&s.policy, &doc, &err) < 0) {
        free(s.commands);
        return policy_error(&err);
    }
    if (s.n_commands)
        log_start(); /* the hosts write to it */
    rc = check(&world, &s, doc);
    host_world_done(&world);
    if (s.n_commands)
        log_stop();
    policy_doc_free(doc);
    free(s.commands);
    return rc;
}
