#include "git/combined.h"

#include "base/arena.h"
#include "base/own.h"

#include <git2.h>
#include <string.h>

/* How it works: each line of the result carries a bit per parent that doesn't have it, and the
 * lines lost from the parents hang before the line they would have stood at. Lines lost from both
 * are found by a longest common subsequence and shown once. A hunk that only says "as one of the
 * parents" is left out. */

#define CONTEXT 3
#define ALL 3u       /* bits of both parents */
#define MARK 4u      /* to be shown */
#define NO_LOST 8u   /* leading context: what hangs before it belongs elsewhere */
#define MAX_LCS 2000 /* longer lists of lost lines are not matched up */

struct lost {
    struct lost *next;
    const char *text;
    size_t len;
    unsigned parents;
};

struct line {
    const char *text;
    size_t len;
    unsigned flags;
    struct lost *lost, **lost_end;   /* of the parents so far */
    struct lost *fresh, **fresh_end; /* of the parent being read */
    unsigned long at[2];             /* line number in each parent */
};

struct sheet {
    struct arena arena;
    struct line
        *lines; /* count + 2: one after the end for what is lost there, one for its number */
    size_t count;
};

static int split(struct sheet *s, const struct side *result)
{
    size_t n = 0;
    for (size_t i = 0; i < result->len; i++)
        n += result->data[i] == '\n';
    n += result->len > 0 && result->data[result->len - 1] != '\n';
    s->count = n;
    s->lines = arena_zalloc(&s->arena, (n + 2) * sizeof *s->lines);
    if (!s->lines)
        return -1;
    const char *at = result->data, *end = at + result->len;
    for (size_t i = 0; i < n; i++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        s->lines[i].text = at;
        s->lines[i].len = (size_t)((stop ? stop : end) - at);
        at = stop ? stop + 1 : end;
    }
    for (size_t i = 0; i < n + 2; i++) {
        s->lines[i].lost_end = &s->lines[i].lost;
        s->lines[i].fresh_end = &s->lines[i].fresh;
    }
    return 0;
}

/* --- reading one parent ----------------------------------------------------------------------- */

static int append_lost(struct sheet *s, struct line *before, const git_diff_line *from,
                       unsigned parent)
{
    struct lost *l = arena_zalloc(&s->arena, sizeof *l);
    if (!l)
        return -1;
    l->len = from->content_len;
    if (l->len > 0 && from->content[l->len - 1] == '\n')
        l->len--;
    l->text = arena_strndup(&s->arena, from->content, l->len);
    l->parents = 1u << parent;
    *before->fresh_end = l;
    before->fresh_end = &l->next;
    return l->text ? 0 : -1;
}

static int read_hunk(struct sheet *s, git_patch *patch, size_t h, unsigned parent)
{
    const git_diff_hunk *hunk;
    size_t n;
    if (git_patch_get_hunk(&hunk, &n, patch, h) < 0)
        return -1;
    /* A pure deletion names the line it follows, so that what is lost hangs before the next one. */
    size_t first = (size_t)hunk->new_start - (hunk->new_lines > 0);
    if (first > s->count)
        return 0;
    size_t at = first;
    for (size_t i = 0; i < n; i++) {
        const git_diff_line *line;
        if (git_patch_get_line_in_hunk(&line, patch, h, i) < 0)
            return -1;
        if (line->origin == GIT_DIFF_LINE_DELETION &&
            append_lost(s, &s->lines[first], line, parent) < 0)
            return -1;
        if (line->origin == GIT_DIFF_LINE_ADDITION && at < s->count)
            s->lines[at++].flags |= 1u << parent;
    }
    return 0;
}

static bool same_text(const struct lost *a, const struct lost *b)
{
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

static size_t list_length(const struct lost *l)
{
    size_t n = 0;
    for (; l; l = l->next)
        n++;
    return n;
}

/* Weaves the lines lost from this parent into those lost before; equal ones become one. */
static int weave(struct line *line)
{
    size_t n = list_length(line->lost), m = list_length(line->fresh);
    struct lost *old = line->lost, *fresh = line->fresh;
    line->fresh = NULL;
    line->fresh_end = &line->fresh;
    if (m == 0)
        return 0;
    if (n == 0 || n > MAX_LCS || m > MAX_LCS) {
        *line->lost_end = fresh;
        while (*line->lost_end)
            line->lost_end = &(*line->lost_end)->next;
        return 0;
    }

    size_t width = m + 1;
    autofree uint16_t *common = calloc((n + 1) * width, sizeof *common);
    autofree struct lost **a = malloc(n * sizeof *a), **b = malloc(m * sizeof *b),
                         **out = malloc((n + m) * sizeof *out);
    if (!common || !a || !b || !out)
        return -1;
    for (size_t i = 0; i < n; i++, old = old->next)
        a[i] = old;
    for (size_t k = 0; k < m; k++, fresh = fresh->next)
        b[k] = fresh;
    for (size_t i = 1; i <= n; i++)
        for (size_t k = 1; k <= m; k++) {
            uint16_t up = common[(i - 1) * width + k], left = common[i * width + k - 1];
            common[i * width + k] = same_text(a[i - 1], b[k - 1])
                                        ? (uint16_t)(common[(i - 1) * width + k - 1] + 1)
                                    : left >= up ? left
                                                 : up;
        }

    size_t at = n + m, i = n, k = m;
    while (i > 0 || k > 0) {
        if (i > 0 && k > 0 && same_text(a[i - 1], b[k - 1])) {
            a[i - 1]->parents |= b[k - 1]->parents;
            out[--at] = a[--i];
            k--;
        } else if (k > 0 && (i == 0 || common[i * width + k - 1] >= common[(i - 1) * width + k])) {
            out[--at] = b[--k];
        } else {
            out[--at] = a[--i];
        }
    }
    line->lost_end = &line->lost;
    for (; at < n + m; at++) {
        out[at]->next = NULL;
        *line->lost_end = out[at];
        line->lost_end = &out[at]->next;
    }
    return 0;
}

static int read_parent(struct sheet *s, const struct side *parent, const struct side *result,
                       unsigned index)
{
    git_diff_options opts;
    git_patch *patch = NULL;
    git_diff_options_init(&opts, GIT_DIFF_OPTIONS_VERSION);
    opts.context_lines = 0;
    opts.flags = GIT_DIFF_INDENT_HEURISTIC | GIT_DIFF_FORCE_TEXT;
    if (git_patch_from_buffers(&patch, parent->data, parent->len, NULL, result->data, result->len,
                               NULL, &opts) < 0)
        return -1;
    int rc = 0;
    for (size_t h = 0; patch && h < git_patch_num_hunks(patch) && rc == 0; h++)
        rc = read_hunk(s, patch, h, index);
    git_patch_free(patch);

    unsigned long number = 1;
    for (size_t i = 0; i <= s->count && rc == 0; i++) {
        struct line *line = &s->lines[i];
        rc = weave(line);
        line->at[index] = number;
        for (const struct lost *l = line->lost; l; l = l->next)
            number += (l->parents >> index) & 1;
        number += i < s->count && !(line->flags & 1u << index);
    }
    s->lines[s->count + 1].at[index] = number;
    return rc;
}

/* --- what is of interest ---------------------------------------------------------------------- */

/* The first line from i on with (or without) a mark; count + 1 when there is none. */
static size_t next_marked(const struct sheet *s, size_t i, bool marked)
{
    while (i <= s->count && !!(s->lines[i].flags & MARK) != marked)
        i++;
    return i;
}

/* i is the first line of no interest. The one before may be there only for what was lost before it:
 * then it is context already. */
static size_t tail_of(const struct sheet *s, size_t begin, size_t i)
{
    return begin + 1 <= i && !(s->lines[i - 1].flags & ALL) ? i - 1 : i;
}

static size_t at_most(size_t i, size_t max) { return i < max ? i : max; }

/* End of the hunk that begins at i: it goes on over gaps smaller than the context. */
static size_t hunk_end(const struct sheet *s, size_t begin)
{
    size_t j = begin + 1;
    for (; j <= s->count; j++) {
        if (s->lines[j].flags & MARK)
            continue;
        size_t ahead = at_most(tail_of(s, begin, j) + CONTEXT, s->count + 1);
        bool goes_on = false;
        while (ahead > j && !goes_on)
            goes_on = s->lines[--ahead].flags & MARK;
        if (!goes_on)
            break;
        j = ahead;
    }
    return j;
}

/* Do its changes differ between the parents, or come from both? */
static bool is_dense(const struct sheet *s, size_t begin, size_t end)
{
    unsigned same = 0;
    for (size_t i = begin; i < end; i++) {
        unsigned bits = s->lines[i].flags & ALL;
        if (bits && same && bits != same)
            return true;
        same = bits ? bits : same;
        for (const struct lost *l = s->lines[i].lost; l; l = l->next) {
            if (same && l->parents != same)
                return true;
            same = l->parents;
        }
    }
    return same == ALL;
}

static void mark_changes(struct sheet *s)
{
    for (size_t i = 0; i <= s->count; i++)
        if ((s->lines[i].flags & ALL) || s->lines[i].lost)
            s->lines[i].flags |= MARK;
    for (size_t i = next_marked(s, 0, true); i <= s->count;) {
        size_t end = hunk_end(s, i);
        if (!is_dense(s, i, end))
            for (size_t j = i; j < end; j++)
                s->lines[j].flags &= ~MARK;
        i = next_marked(s, end, true);
    }
}

static void mark_context(struct sheet *s)
{
    size_t i = next_marked(s, 0, true);
    while (i <= s->count) {
        for (size_t j = i > CONTEXT ? i - CONTEXT : 0; j < i; j++) {
            if (!(s->lines[j].flags & MARK))
                s->lines[j].flags |= NO_LOST;
            s->lines[j].flags |= MARK;
        }
        for (;;) {
            size_t j = next_marked(s, i, false);
            if (j > s->count)
                return;
            size_t next = next_marked(s, j, true);
            j = tail_of(s, i, j);
            if (next < j + CONTEXT) {
                while (j < next)
                    s->lines[j++].flags |= MARK;
                i = next;
                continue;
            }
            i = next;
            for (size_t stop = at_most(j + CONTEXT, s->count + 1); j < stop; j++)
                s->lines[j].flags |= MARK;
            break;
        }
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

static bool is_heading(const struct line *line)
{
    char c = line->len > 0 ? line->text[0] : '\0';
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

/* git stops before the last character that is no blank within the first 40. */
static void put_heading(struct buf *out, const struct line *line)
{
    size_t end = 0;
    for (size_t i = 0; i < 40 && i < line->len; i++)
        if (!strchr(" \t\r\v\f", line->text[i]))
            end = i;
    if (end > 0) {
        buf_addc(out, ' ');
        buf_add(out, line->text, end);
    }
}

static void put_line(struct buf *out, unsigned bits, char sign, const char *text, size_t len)
{
    buf_addc(out, bits & 1 ? sign : ' ');
    buf_addc(out, bits & 2 ? sign : ' ');
    buf_add(out, text, len);
    buf_addc(out, '\n');
}

static void put_hunk(const struct sheet *s, size_t begin, size_t end, const struct line *heading,
                     struct buf *out)
{
    size_t shown =
        end - begin - (end > s->count); /* the last one only carries what was lost at the end */
    buf_adds(out, "@@@");
    for (int p = 0; p < 2; p++)
        buf_addf(out, " -%lu,%lu", s->lines[begin].at[p],
                 s->lines[end].at[p] - s->lines[begin].at[p]);
    buf_addf(out, " +%zu,%zu @@@", begin + 1, shown);
    if (heading)
        put_heading(out, heading);
    buf_addc(out, '\n');
    for (size_t i = begin; i < end; i++) {
        const struct line *line = &s->lines[i];
        if (!(line->flags & NO_LOST))
            for (const struct lost *l = line->lost; l; l = l->next)
                put_line(out, l->parents, '-', l->text, l->len);
        if (i < s->count)
            put_line(out, line->flags & ALL, '+', line->text, line->len);
    }
}

int combined_hunks(const struct side parents[2], const struct side *result, struct buf *out)
{
    struct sheet s = {0};
    arena_init(&s.arena);
    int rc = split(&s, result);
    for (unsigned p = 0; p < 2 && rc == 0; p++)
        rc = read_parent(&s, &parents[p], result, p);
    if (rc == 0) {
        mark_changes(&s);
        mark_context(&s);
        for (size_t i = 0;;) {
            const struct line *heading = NULL;
            for (; i <= s.count && !(s.lines[i].flags & MARK); i++)
                if (is_heading(&s.lines[i]))
                    heading = &s.lines[i];
            if (i > s.count)
                break;
            size_t end = next_marked(&s, i + 1, false);
            put_hunk(&s, i, end, heading, out);
            i = end;
        }
    }
    arena_done(&s.arena);
    return rc;
}
