#include "routes/table.h"

#include "base/module.h"
#include "git/git.h"
#include "http/req.h"
#include "policy/guard.h"

#include <string.h>

#define DEADLINE_MS 25000 /* clients wait 30 s */

/* Judges `path` (default: the first root) and fills what both calls need. */
static int start(struct req *req, struct git_query *q, const struct git_api **ret_git,
                 struct abx_error *err)
{
    struct guard_path judged;
    size_t len;
    const char *path = req_query_raw(req, "path", &len);
    if (!path || len == 0) {
        path = ".";
        len = 1;
    }
    if (guard_check(req_guard(req), path, len, NULL, OP_READ, req_arena(req), &judged, err) < 0)
        return -1;
    req_note_path(req, judged.resolved);
    *q = (struct git_query){.guard = req_guard(req),
                            .path = judged.resolved,
                            .root = judged.root,
                            .deadline_ms = mono_ms() + DEADLINE_MS};
    *ret_git = module_symbol("git", "abx_git_api", err);
    return *ret_git ? 0 : -1;
}

int route_git_status(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct git_query q;
    const struct git_api *git;
    json_t *answer;
    if (start(req, &q, &git, err) < 0 || git->status(&q, &answer, err) < 0)
        return -1;
    return resp_value(resp, answer, err);
}

static bool climbs(const char *path, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = 0;
        while (i + n < len && path[i + n] != '/')
            n++;
        if (n == 2 && path[i] == '.' && path[i + 1] == '.')
            return true;
        i += n + 1;
    }
    return false;
}

/* `file` is a name below `path`, never a pattern or an option. Guarded before anything else is said
 * of it. */
static int take_file(struct req *req, struct git_query *q, struct abx_error *err)
{
    struct guard_path judged;
    size_t len;
    const char *file = req_query_raw(req, "file", &len);
    if (!file || len == 0) {
        if (guard_has_deny(q->guard))
            return abx_fail(err, E_PATH_DENIED, 0,
                            "A 'file' is required while path deny rules are configured");
        return 0;
    }
    if (guard_check(q->guard, file, len, q->path, OP_READ, req_arena(req), &judged, err) < 0)
        return abx_prefix(err, "file: ");
    if (climbs(file, len))
        return abx_fail(err, E_VALUE, 0, "Path traversal ('..') is not allowed in 'file'");
    q->file = judged.lexical;
    return 0;
}

int route_git_diff(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct git_query q;
    const struct git_api *git;
    json_t *answer;
    if (start(req, &q, &git, err) < 0 || take_file(req, &q, err) < 0)
        return -1;
    q.staged = req_query_bool(req, "staged");
    if (git->diff(&q, &answer, err) < 0)
        return -1;
    return resp_value(resp, answer, err);
}
