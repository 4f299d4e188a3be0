#include "process/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/own.h"
#include "base/utf8.h"

struct proc_table {
    struct loop *loop;
    struct spawner *spawner;
    struct list entries; /* struct entry.link, in start order */
    size_t starting, running, exited;
    size_t exited_bytes;
    struct timer age;
};

struct entry {
    struct list link;
    struct proc_table *t;
    struct proc *proc;
    void (*started)(void *data, struct entry *e, int sys);
    void *started_data;
    pid_t pid;
    char *command;
    size_t command_len;
    double started_at;
    uint64_t ended_ms;
    bool running, capture, has_stdin, dropped;
    int exit_code;
    struct utf8_decoder decoder[2];
    /* The ring: events first .. next - 1, at seq & (cap - 1). */
    struct out_event **ring;
    size_t cap; /* a power of two */
    int64_t first, next, chars, chars_max;
    size_t bytes;
    struct list watches;
};

/* --- the ring --------------------------------------------------------------------------------- */

static void drop_oldest(struct entry *e)
{
    struct out_event **slot = &e->ring[(size_t)e->first & (e->cap - 1)];
    e->chars -= (*slot)->chars;
    e->bytes -= sizeof(**slot) + (*slot)->len;
    free(*slot);
    *slot = NULL;
    e->first++;
}

static int grow(struct entry *e)
{
    size_t cap = e->cap ? e->cap * 2 : 16;
    struct out_event **ring = calloc(cap, sizeof(struct out_event *));
    if (!ring)
        return -1;
    for (int64_t i = e->first; i < e->next; i++)
        ring[(size_t)i & (cap - 1)] = e->ring[(size_t)i & (e->cap - 1)];
    free(e->ring);
    e->ring = ring;
    e->cap = cap;
    return 0;
}

static uint32_t count_characters(const char *s, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static void push(struct entry *e, enum proc_stream stream, const char *text, size_t len)
{
    struct out_event *ev = NULL;
    if ((size_t)(e->next - e->first) < e->cap || grow(e) == 0)
        ev = malloc(sizeof(*ev) + len);
    if (!ev) { /* no memory: lost, and said so */
        e->dropped = true;
        return;
    }
    *ev = (struct out_event){.stream = stream,
                             .at = wall_seconds(),
                             .len = (uint32_t)len,
                             .chars = count_characters(text, len)};
    memcpy(ev->text, text, len);
    e->ring[(size_t)e->next & (e->cap - 1)] = ev;
    e->next++;
    e->chars += ev->chars;
    e->bytes += sizeof(*ev) + len;
    while (e->chars > e->chars_max && e->next - e->first > 1) {
        drop_oldest(e);
        e->dropped = true;
    }
}

static void push_text(struct entry *e, enum proc_stream stream, const struct buf *text)
{
    for (size_t at = 0; at < text->len;) {
        size_t len = text->len - at;
        if (len > TABLE_EVENT_BYTES)
            len = utf8_floor(text->data + at, TABLE_EVENT_BYTES);
        push(e, stream, text->data + at, len);
        at += len;
    }
}

int64_t entry_first(const struct entry *e)
{
    return e->first;
}

int64_t entry_next(const struct entry *e)
{
    return e->next;
}

bool entry_dropped(const struct entry *e)
{
    return e->dropped;
}

const struct out_event *entry_event(const struct entry *e, int64_t seq)
{
    return e->ring[(size_t)seq & (e->cap - 1)];
}

/* --- watches ----------------------------------------------------------------------------------- */

void entry_watch(struct entry *e, struct entry_watch *w)
{
    list_append(&e->watches, &w->link);
}

void entry_unwatch(struct entry_watch *w)
{
    list_remove(&w->link);
}

/* Each is moved back before it is called, so any of them may be removed meanwhile. */
static void notify(struct entry *e)
{
    struct list now;
    list_init(&now);
    while (!list_empty(&e->watches)) {
        struct list *first = e->watches.next;
        list_remove(first);
        list_append(&now, first);
    }
    while (!list_empty(&now)) {
        struct list *first = now.next;
        list_remove(first);
        list_append(&e->watches, first);
        struct entry_watch *w = list_entry(first, struct entry_watch, link);
        w->fn(w->data);
    }
}

/* --- the table ---------------------------------------------------------------------------------- */

static void entry_free(struct entry *e)
{
    while (e->first < e->next)
        drop_oldest(e);
    free(e->ring);
    free(e->command);
    free(e);
}

static void forget(struct entry *e)
{
    e->t->exited--;
    e->t->exited_bytes -= e->bytes;
    list_remove(&e->link);
    entry_free(e);
}

/* Drops what the rule in the header says; entries somebody watches wait. */
static void prune(void *data)
{
    struct proc_table *t = data;
    uint64_t now = mono_ms(), next = 0;
    list_for_each_safe(it, &t->entries) {
        struct entry *e = list_entry(it, struct entry, link);
        if (e->running || !list_empty(&e->watches))
            continue;
        if (t->exited > TABLE_EXITED_MAX || t->exited_bytes > TABLE_EXITED_BYTES ||
            now - e->ended_ms >= TABLE_EXITED_MS)
            forget(e);
        else if (!next || e->ended_ms + TABLE_EXITED_MS < next)
            next = e->ended_ms + TABLE_EXITED_MS;
    }
    if (next)
        timer_start(&t->age, next - now);
    else
        timer_stop(&t->age);
}

static void on_started(void *owner, struct proc *p, int sys)
{
    struct entry *e = owner;
    struct proc_table *t = e->t;
    t->starting--;
    if (sys != 0) {
        e->started(e->started_data, NULL, sys);
        entry_free(e);
        return;
    }
    e->pid = proc_pid(p);
    e->started_at = wall_seconds();
    e->running = true;
    t->running++;
    list_append(&t->entries, &e->link);
    e->started(e->started_data, e, 0);
}

static void on_output(void *owner, enum proc_stream stream, const char *data, size_t len)
{
    struct entry *e = owner;
    autobuf struct buf text = BUF_INIT;
    utf8_decode(&e->decoder[stream == PROC_STDERR], data, len, &text);
    push_text(e, stream, &text);
    notify(e);
}

static void on_ended(void *owner, int exit_code)
{
    struct entry *e = owner;
    struct proc_table *t = e->t;
    for (int i = 0; i < 2; i++) {
        autobuf struct buf text = BUF_INIT;
        utf8_finish(&e->decoder[i], &text);
        push_text(e, i ? PROC_STDERR : PROC_STDOUT, &text);
    }
    e->proc = NULL;
    e->running = false;
    e->exit_code = exit_code;
    e->ended_ms = mono_ms();
    t->running--;
    t->exited++;
    t->exited_bytes += e->bytes;
    notify(e);
    prune(t);
}

static const struct proc_ops ops = {.started = on_started, .output = on_output, .ended = on_ended};

int proc_table_admit(struct proc_table *t, int64_t running_max, struct abx_error *err)
{
    if ((int64_t)(t->running + t->starting) < running_max)
        return 0;
    return abx_fail(err, E_RESOURCE, 0, "Process limit reached (%lld)", (long long)running_max);
}

int proc_table_start(struct proc_table *t, const struct entry_opts *o,
                     void (*started)(void *data, struct entry *e, int sys), void *data, struct abx_error *err)
{
    prune(t);
    if (proc_table_admit(t, o->running_max, err) < 0)
        return -1;
    struct entry *e = calloc(1, sizeof(*e));
    char *command = malloc(o->command_len + 1);
    if (!e || !command) {
        free(e);
        free(command);
        return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
    }
    memcpy(command, o->command, o->command_len);
    command[o->command_len] = '\0';
    *e = (struct entry){.t = t,
                        .started = started,
                        .started_data = data,
                        .command = command,
                        .command_len = o->command_len,
                        .capture = o->capture,
                        .has_stdin = o->has_stdin,
                        .chars_max = o->ring_chars};
    list_init(&e->link);
    list_init(&e->watches);
    if (proc_start(t->spawner, t->loop, &o->proc, &ops, e, &e->proc, err) < 0) {
        entry_free(e);
        return -1;
    }
    t->starting++;
    return 0;
}

struct entry *proc_table_find(struct proc_table *t, pid_t pid)
{
    for (struct list *it = t->entries.prev; it != &t->entries; it = it->prev) {
        struct entry *e = list_entry(it, struct entry, link);
        if (e->pid == pid)
            return e;
    }
    return NULL;
}

void proc_table_each(struct proc_table *t, void (*fn)(void *data, struct entry *e), void *data)
{
    list_for_each(it, &t->entries) {
        struct entry *e = list_entry(it, struct entry, link);
        if (e->running)
            fn(data, e);
    }
}

struct proc_table *proc_table_new(struct loop *loop, struct spawner *spawner)
{
    struct proc_table *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->loop = loop;
    t->spawner = spawner;
    list_init(&t->entries);
    timer_init(&t->age, loop, prune, t);
    return t;
}

void proc_table_free(struct proc_table *t)
{
    if (!t)
        return;
    timer_done(&t->age);
    list_for_each_safe(it, &t->entries) {
        struct entry *e = list_entry(it, struct entry, link);
        list_remove(&e->link);
        if (e->proc)
            proc_cancel(e->proc, 0);
        entry_free(e);
    }
    free(t);
}

pid_t entry_pid(const struct entry *e)
{
    return e->pid;
}

const char *entry_command(const struct entry *e, size_t *ret_len)
{
    *ret_len = e->command_len;
    return e->command;
}

bool entry_running(const struct entry *e)
{
    return e->running;
}

int entry_exit_code(const struct entry *e)
{
    return e->exit_code;
}

double entry_started_at(const struct entry *e)
{
    return e->started_at;
}

bool entry_captures(const struct entry *e)
{
    return e->capture;
}

bool entry_has_stdin(const struct entry *e)
{
    return e->has_stdin;
}

void entry_close_stdin(struct entry *e)
{
    e->has_stdin = false;
    if (e->proc)
        proc_close_stdin(e->proc);
}

struct proc *entry_proc(struct entry *e)
{
    return e->proc;
}
