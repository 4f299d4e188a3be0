/* A log keeps its newest frames in memory for the readers that follow it, and all of them in the
 * store. A reader that fell behind reads pages from the store until it meets the newest ones again,
 * so a slow client costs a page of memory and nobody else anything. */
#include "agents/agents.h"

#include "base/json.h"
#include "base/own.h"

#include <string.h>

#define RING_FRAMES 256
#define RING_BYTES (256 * KIB)
#define PAGE_FRAMES 100
#define PAGE_BYTES (1 * MIB)

struct frame {
    struct list node;
    int64_t seq;
    int sub;
    size_t len;
    char *type;
    char data[];
};

struct evlog_reader {
    struct list node;  /* log.readers */
    struct evlog *log; /* NULL: the log is gone */
    const struct evlog_ops *ops;
    void *owner;
    int64_t seq; /* last one given */
    int sub;
    bool whole; /* all of seq was given: positions begin behind it */
    struct list page;
    bool loading, closed, told_end, in_pump;
    bool again;
    /* the page request; loop hands it to a worker */
    struct store *store;
    int64_t log_id, first;
    struct loop *loop;
};

static void pump(struct evlog_reader *r);

void evlog_init(struct evlog *l, struct agents *ag, int64_t id, int64_t next_seq)
{
    *l = (struct evlog){.ag = ag, .id = id, .next_seq = next_seq};
    list_init(&l->frames);
    list_init(&l->readers);
}

static struct frame *frame_new(int64_t seq, int sub, const char *type, const char *data, size_t len)
{
    size_t type_len = strlen(type) + 1;
    struct frame *f = malloc(sizeof(*f) + len + 1 + type_len);
    if (!f)
        return NULL;
    f->seq = seq;
    f->sub = sub;
    f->len = len;
    list_init(&f->node);
    memcpy(f->data, data, len);
    f->data[len] = '\0';
    f->type = f->data + len + 1;
    memcpy(f->type, type, type_len);
    return f;
}

static void free_frames(struct list *l)
{
    list_for_each_safe(it, l)
    {
        list_remove(it);
        free(list_entry(it, struct frame, node));
    }
}

static void soon(struct evlog_reader *r);

char *ag_compact(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
    /* the escapes in lower case, as everywhere else on the wire */
    for (char *p = text; p && *p; p++) {
        if (*p != '\\')
            continue;
        if (*++p == 'u')
            for (int i = 0; i < 4 && p[1]; i++, p++)
                p[1] = (char)(p[1] >= 'A' && p[1] <= 'F' ? p[1] + 32 : p[1]);
    }
    return text;
}

void evlog_add(struct evlog *l, int sub, const char *type, const json_t *data)
{
    if (l->muted)
        return;
    if (sub == 0)
        l->next_seq++;
    int64_t seq = l->next_seq - 1;
    autofree char *text = ag_compact(data);
    if (!text)
        return;
    size_t len = strlen(text);
    store_post(l->ag->store,
               "INSERT OR REPLACE INTO events(log, seq, sub, type, data) VALUES(?,?,?,?,?)",
               "iiisb", l->id, seq, (int64_t)sub, type, text, len);
    struct frame *f = frame_new(seq, sub, type, text, len);
    if (f) {
        list_append(&l->frames, &f->node);
        l->n_frames++;
        l->bytes += f->len;
    }
    while (l->n_frames > 1 && (l->n_frames > RING_FRAMES || l->bytes > RING_BYTES)) {
        struct frame *old = list_entry(l->frames.next, struct frame, node);
        l->n_frames--;
        l->bytes -= old->len;
        list_remove(&old->node);
        free(old);
    }
    if (sub == 0 && ++l->since_trim >= 1000) {
        l->since_trim = 0;
        if (l->next_seq > l->ag->set.max_events)
            store_post(l->ag->store, "DELETE FROM events WHERE log = ? AND seq <= ?", "ii", l->id,
                       l->next_seq - 1 - l->ag->set.max_events);
    }
    list_for_each_safe(it, &l->readers) pump(list_entry(it, struct evlog_reader, node));
}

static void finish(struct evlog_reader *r)
{
    if (r->told_end || r->closed)
        return;
    r->told_end = true;
    r->ops->ended(r->owner);
}

void evlog_complete(struct evlog *l)
{
    l->complete = true;
    list_for_each_safe(it, &l->readers) pump(list_entry(it, struct evlog_reader, node));
}

void evlog_done(struct evlog *l)
{
    list_for_each_safe(it, &l->readers)
    {
        struct evlog_reader *r = list_entry(it, struct evlog_reader, node);
        r->log = NULL;
        list_remove(&r->node);
        l->n_readers--;
        soon(r); /* never from within: the owner may be in the middle of something */
    }
    free_frames(&l->frames);
    l->n_frames = 0;
    l->bytes = 0;
}

void evlog_discard(struct evlog *l)
{
    free_frames(&l->frames);
    l->n_frames = 0;
    l->bytes = 0;
}

static void reader_free(struct evlog_reader *r)
{
    free_frames(&r->page);
    free(r);
}

void evlog_close(struct evlog_reader *r)
{
    if (!r || r->closed)
        return;
    r->closed = true;
    if (r->log) {
        list_remove(&r->node);
        r->log->n_readers--;
        r->log = NULL;
    }
    if (!r->loading && !r->in_pump && !r->again)
        reader_free(r);
}

/* --- pages from the store --- */

static void load_page(void *data)
{
    struct evlog_reader *r = data;
    size_t n = 0, bytes = 0;
    store_lock(r->store);
    sqlite3_stmt *s = store_stmt(
        r->store,
        "SELECT seq, sub, type, data FROM events WHERE log = ?1 AND (seq > ?2 OR (seq = ?2 "
        "AND sub > ?3)) ORDER BY seq, sub",
        "iii", r->log_id, r->seq, (int64_t)(r->whole ? 1000000 : r->sub));
    while (s && n < PAGE_FRAMES && bytes < PAGE_BYTES && sqlite3_step(s) == SQLITE_ROW) {
        struct frame *f =
            frame_new(sqlite3_column_int64(s, 0), sqlite3_column_int(s, 1), store_text(s, 2),
                      store_text(s, 3), (size_t)sqlite3_column_bytes(s, 3));
        if (!f)
            break;
        if (n == 0)
            r->first = f->seq;
        list_append(&r->page, &f->node);
        n++;
        bytes += f->len;
    }
    if (s)
        sqlite3_reset(s);
    store_unlock(r->store);
}

static void page_loaded(void *data)
{
    struct evlog_reader *r = data;
    r->loading = false;
    if (r->closed) {
        if (!r->again)
            reader_free(r);
        return;
    }
    if (r->first > r->seq + 1 && r->ops->gap) {
        r->ops->gap(r->owner, r->first);
    } else if (list_empty(&r->page) && r->log && r->log->next_seq > r->seq + 1) {
        /* Nothing stored (a full disk): go on with what memory has. */
        struct frame *f = list_empty(&r->log->frames)
                              ? NULL
                              : list_entry(r->log->frames.next, struct frame, node);
        r->seq = f ? f->seq - 1 : r->log->next_seq - 1;
        r->whole = true;
    }
    if (r->closed) {
        if (!r->again)
            reader_free(r);
        return;
    }
    pump(r);
}

/* The next frame in memory behind the reader's place; NULL with *behind when it has to come from
 * the store. */
static struct frame *next_frame(struct evlog_reader *r, bool *behind)
{
    *behind = false;
    struct evlog *l = r->log;
    int64_t last = l->next_seq - 1;
    if (r->seq > last || (r->seq == last && r->whole))
        return NULL;
    struct frame *found = NULL;
    for (struct list *it = l->frames.prev; it != &l->frames; it = it->prev) {
        struct frame *f = list_entry(it, struct frame, node);
        if (f->seq < r->seq || (f->seq == r->seq && (r->whole || f->sub <= r->sub)))
            return found; /* the one behind it is the next; NULL: all given */
        found = f;
    }
    /* The whole ring lies behind the place: is it the very next? */
    if (found && ((found->seq == r->seq + 1 && found->sub == 0) ||
                  (found->seq == r->seq && found->sub == r->sub + 1)))
        return found;
    *behind = r->seq < last || found != NULL;
    return NULL;
}

static bool give(struct evlog_reader *r, int64_t seq, int sub, const char *type, const char *data,
                 size_t len)
{
    r->seq = seq;
    r->sub = sub;
    r->whole = false;
    return r->ops->frame(r->owner, seq, sub, type, data, len);
}

static void pump(struct evlog_reader *r)
{
    if (r->in_pump || r->loading || r->closed || r->told_end)
        return;
    r->in_pump = true;
    bool go = true;
    while (go && !r->closed && r->ops->ready(r->owner)) {
        if (!list_empty(&r->page)) {
            struct frame *f = list_entry(r->page.next, struct frame, node);
            list_remove(&f->node);
            go = give(r, f->seq, f->sub, f->type, f->data, f->len);
            free(f);
            continue;
        }
        if (!r->log) {
            finish(r);
            break;
        }
        bool behind;
        struct frame *f = next_frame(r, &behind);
        if (f) {
            /* The callback may append and so push this frame out of memory. */
            struct frame *copy = frame_new(f->seq, f->sub, f->type, f->data, f->len);
            if (!copy)
                break;
            go = give(r, copy->seq, copy->sub, copy->type, copy->data, copy->len);
            free(copy);
            continue;
        }
        if (behind) {
            r->store = r->log->ag->store;
            r->log_id = r->log->id;
            r->first = 0;
            r->loading = true;
            if (loop_work(r->log->ag->d.loop, WORK_SHORT, load_page, page_loaded, r) < 0) {
                r->loading = false;
                finish(r);
            }
            break;
        }
        if (r->log->complete)
            finish(r);
        break;
    }
    r->in_pump = false;
    if (r->closed && !r->loading && !r->again)
        reader_free(r);
}

static void later(void *data)
{
    struct evlog_reader *r = data;
    r->again = false;
    if (r->closed) {
        if (!r->loading)
            reader_free(r);
        return;
    }
    if (!r->log && list_empty(&r->page) && !r->loading) {
        finish(r);
        return;
    }
    pump(r);
}

static void soon(struct evlog_reader *r)
{
    if (r->again)
        return;
    r->again = true;
    loop_post(r->loop, later, r);
}

struct evlog_reader *evlog_read(struct evlog *l, int64_t after, const struct evlog_ops *ops,
                                void *owner)
{
    struct evlog_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    *r = (struct evlog_reader){
        .log = l, .ops = ops, .owner = owner, .seq = after, .whole = true, .loop = l->ag->d.loop};
    list_init(&r->page);
    list_init(&r->node);
    list_append(&l->readers, &r->node);
    l->n_readers++;
    soon(r);
    return r;
}

void evlog_resume(struct evlog_reader *r) { pump(r); }
