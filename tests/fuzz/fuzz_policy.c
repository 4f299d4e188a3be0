/* A policy document: JSON, or YAML when the first byte is odd. What parses is compiled, linted and described, so
 * that no document can bring the server down at its start. */

#include "base/own.h"
#include "../unit/policy/sample.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *fuzz_env(const char *name)
{
    return "value";
}

static void look(const struct policy *p)
{
    struct abx_error err;
    autobuf struct buf out = BUF_INIT;
    const struct identity *who = NULL;
    struct credential c = {true, "value", 5};
    autojson json_t *warnings = policy_lint(p, NULL);

    if (policy_authenticate(p, &c, 1, &who, &err) < 0)
        who = policy_nobody();
    autojson json_t *doc = policy_capabilities(p, who, "1", &err);
    autojson json_t *described = policy_describe_json(p, warnings);
    policy_describe(p, warnings, &out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct endpoint *endpoints[SAMPLE_COUNT];
    struct policy_doc *doc = NULL;
    struct policy *p = NULL;
    struct abx_error err;

    if (size == 0)
        return 0;
    for (size_t i = 0; i < SAMPLE_COUNT; i++)
        endpoints[i] = &sample[i];
    if (policy_doc_parse((const char *)data + 1, size - 1, data[0] & 1, "fuzz", &doc, &err) < 0)
        return 0;
    struct policy_inputs in = {
        .doc = doc, .endpoints = endpoints, .n_endpoints = SAMPLE_COUNT, .getenv = fuzz_env};
    if (policy_compile(&in, &p, &err) == 0) {
        look(p);
        policy_unref(p);
    }
    policy_doc_free(doc);
    return 0;
}
