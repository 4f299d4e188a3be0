#include "cli/check_config.h"

#include "base/json.h"
#include "base/own.h"
#include "policy/policy.h"
#include "routes/table.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

struct options {
    const char *policy, *preset, *explain, *path, *scopes, *op;
    bool json, strict;
};

enum option_id { OPT_POLICY = 1, OPT_PRESET, OPT_JSON, OPT_STRICT, OPT_EXPLAIN, OPT_PATH, OPT_SCOPES,
                 OPT_OP, OPT_HELP };

static const struct option long_options[] = {
    {"policy", required_argument, NULL, OPT_POLICY},
    {"preset", required_argument, NULL, OPT_PRESET},
    {"json", no_argument, NULL, OPT_JSON},
    {"strict", no_argument, NULL, OPT_STRICT},
    {"explain", required_argument, NULL, OPT_EXPLAIN},
    {"path", required_argument, NULL, OPT_PATH},
    {"scopes", required_argument, NULL, OPT_SCOPES},
    {"op", required_argument, NULL, OPT_OP},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static const char usage_line[] =
    "usage: abx-server check-config [-h] [--policy FILE] [--preset NAME] [--json] [--strict]\n"
    "                               [--explain ENDPOINT [--path P] [--scopes a,b] [--op OP]]\n";

static const char help_text[] =
    "\n"
    "Reads the policy that `serve` would use, checks it and prints what it means.\n"
    "\n"
    "  --policy FILE       policy file, JSON or YAML (.yaml, .yml)\n"
    "  --preset NAME       default, transfer-only, read-only, hardened or locked\n"
    "  --json              print for machines\n"
    "  --strict            exit 2 when there are warnings\n"
    "  --explain ENDPOINT  may this endpoint be called? exit 3 when not\n"
    "  --path P            with --explain: and on this path?\n"
    "  --scopes a,b        with --explain: by a caller with these scopes (*)\n"
    "  --op OP             with --explain: read, write, delete or exec\n"
    "\n"
    "Exit: 0 fine, 1 invalid, 2 usage error or --strict with warnings, 3 --explain says no.\n";

static int usage_error(const char *what, const char *word)
{
    const char *names[ARRAY_LEN(long_options)];
    const char *bare = word + strspn(word, "-");
    char name[64];

    for (size_t i = 0; i < ARRAY_LEN(long_options); i++)
        names[i] = long_options[i].name;
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(bare, "="), bare); /* cut on purpose */
    const char *near = suggest(name, names);
    fputs(usage_line, stderr);
    fprintf(stderr, "abx-server check-config: %s '%s'%s%s%s\n", what, word,
            near && word[0] == '-' ? " (did you mean '--" : "", near && word[0] == '-' ? near : "",
            near && word[0] == '-' ? "'?)" : "");
    return 2;
}

static bool is_op(const char *op)
{
    return strcmp(op, "read") == 0 || strcmp(op, "write") == 0 || strcmp(op, "delete") == 0 ||
           strcmp(op, "exec") == 0;
}

/* 0: go on; else 1 + the exit code. */
static int parse(int argc, char **argv, struct options *o)
{
    int c;

    optind = 0; /* glibc: start over */
    opterr = 0;
    while ((c = getopt_long(argc, argv, "+:h", long_options, NULL)) != -1) {
        switch (c) {
        case OPT_POLICY:
            o->policy = optarg;
            break;
        case OPT_PRESET:
            o->preset = optarg;
            break;
        case OPT_JSON:
            o->json = true;
            break;
        case OPT_STRICT:
            o->strict = true;
            break;
        case OPT_EXPLAIN:
            o->explain = optarg;
            break;
        case OPT_PATH:
            o->path = optarg;
            break;
        case OPT_SCOPES:
            o->scopes = optarg;
            break;
        case OPT_OP:
            if (!is_op(optarg))
                return 1 + usage_error("--op must be read, write, delete or exec, not", optarg);
            o->op = optarg;
            break;
        case 'h':
        case OPT_HELP:
            fputs(usage_line, stdout);
            fputs(help_text, stdout);
            return 1;
        case ':':
            return 1 + usage_error("a value is missing after", argv[optind - 1]);
        default:
            return 1 + usage_error("unknown option", argv[optind - 1]);
        }
    }
    return optind < argc ? 1 + usage_error("unexpected argument", argv[optind]) : 0;
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

static int compile(const struct options *o, struct policy **ret, struct abx_error *err)
{
    static const struct endpoint *endpoints[ROUTE_COUNT];
    struct policy_source source = {.file = o->policy, .preset = o->preset};
    struct policy_doc *doc = NULL;
    const char *base = getenv("ABX_SERVER_BASE_DIR");

    if (policy_doc_resolve(&source, &doc, err) < 0)
        return -1;
    for (size_t i = 0; i < ROUTE_COUNT; i++)
        endpoints[i] = &builtin_routes[i].ep;
    struct policy_inputs in = {.doc = doc,
                               .endpoints = endpoints,
                               .n_endpoints = ROUTE_COUNT,
                               .enabled_groups = getenv("ABX_SERVER_ENABLED_GROUPS"),
                               .base_dir = base && *base == '/' ? base : NULL};
    int rc = policy_compile(&in, ret, err);
    policy_doc_free(doc);
    return rc;
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

static int explain(const struct policy *p, const struct options *o)
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
    return json_is_true(json_object_get(answer, "allowed")) ? 0 : 3;
}

static int describe(const struct policy *p, const struct options *o)
{
    autojson json_t *warnings = policy_lint(p, o->policy);

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
    return o->strict && json_array_size(warnings) > 0 ? 2 : 0;
}

int cli_check_config(int argc, char **argv)
{
    struct options o = {0};
    struct policy *p = NULL;
    struct abx_error err;
    int rc = parse(argc, argv, &o);

    if (rc > 0)
        return rc - 1;
    if (compile(&o, &p, &err) < 0)
        return policy_error(&err);
    rc = o.explain ? explain(p, &o) : describe(p, &o);
    policy_unref(p);
    return rc;
}
