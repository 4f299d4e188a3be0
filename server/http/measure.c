/* Requests by endpoint. Each endpoint that was asked for has a slot: how many answers of which method and status, and
 * a histogram of the time from the first byte of the head to the answer (of a stream or WebSocket: to its opening).
 * Slots belong to the loop and are found by the route's place in the table, so counting is a few additions.
 *
 * Labels are bounded: built-in endpoints by id, a template's own routes as "custom", what matches no route as "none";
 * methods that we know; at most SLOT_CODES pairs of method and status per endpoint, the rest as status "other". */

#include "http/internal.h"

#include "base/own.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_CODES 16
#define NS 1000000000.0

/* Upper bounds of the buckets. 300 s is the default time of a command. */
static const struct {
    uint64_t ns;
    const char *le;
} buckets[] = {
    {500000, "0.0005"},      {1000000, "0.001"},       {2500000, "0.0025"},      {5000000, "0.005"},
    {10000000, "0.01"},      {25000000, "0.025"},      {50000000, "0.05"},       {100000000, "0.1"},
    {250000000, "0.25"},     {500000000, "0.5"},       {1000000000, "1.0"},      {2500000000, "2.5"},
    {5000000000, "5.0"},     {10000000000, "10.0"},    {60000000000, "60.0"},    {300000000000, "300.0"},
};

struct slot {
    uint64_t buckets[ARRAY_LEN(buckets) + 1]; /* not cumulated; the last one is beyond them all */
    uint64_t sum_ns;
    struct {
        uint16_t status;
        uint8_t method; /* llhttp's */
        uint64_t n;
    } codes[SLOT_CODES];
    uint64_t other;
};

/* Slots: the built-in endpoints in their order, then these. */
enum { EXTRA_CUSTOM, EXTRA_NONE, EXTRA_COUNT };

void measure_site(struct http *h, const struct site *s)
{
    if (h->slots)
        return; /* the built-in endpoints are those of every site */
    size_t n = site_route_count(s), built_in = 0;
    while (built_in < n && !site_route(s, built_in)->ep.custom)
        built_in++;
    h->slots = calloc(built_in + EXTRA_COUNT, sizeof *h->slots);
    h->n_slots = h->slots ? built_in + EXTRA_COUNT : 0;
}

size_t measure_slot(const struct http *h, const struct site *s, size_t index)
{
    return site_route(s, index)->ep.custom ? h->n_slots - EXTRA_COUNT + EXTRA_CUSTOM : index;
}

void measure_begin(struct req *r)
{
    r->in_flight = true;
    r->http->metrics->in_flight++;
}

void measure_end(struct req *r)
{
    if (!r->in_flight)
        return;
    r->in_flight = false;
    r->http->metrics->in_flight--;
    if (!r->measured)
        measure_answer(r, 499); /* the client left before anybody could answer */
}

void measure_answer(struct req *r, int status)
{
    struct http *h = r->http;
    r->measured = true;
    if (r->resp.error)
        h->metrics->errors[r->resp.error - 1]++;
    if (!h->slots)
        return;
    size_t i = r->route ? r->place : h->n_slots - EXTRA_COUNT + EXTRA_NONE;
    struct slot *s = h->slots[i];
    if (!s) {
        s = h->slots[i] = calloc(1, sizeof *s);
        if (!s)
            return;
    }
    uint8_t method = r->site ? r->method : UINT8_MAX; /* without a whole head none is known */
    uint64_t took = mono_ns() - r->started_ns;
    s->sum_ns += took;
    size_t b = 0;
    while (b < ARRAY_LEN(buckets) && took > buckets[b].ns)
        b++;
    s->buckets[b]++;
    for (size_t k = 0; k < SLOT_CODES; k++) {
        if (s->codes[k].n == 0) {
            s->codes[k].status = (uint16_t)status;
            s->codes[k].method = method;
        }
        if (s->codes[k].status == status && s->codes[k].method == method) {
            s->codes[k].n++;
            return;
        }
    }
    s->other++;
}

void measure_done(struct http *h)
{
    for (size_t i = 0; i < h->n_slots; i++)
        free(h->slots[i]);
    free(h->slots);
    h->slots = NULL;
    h->n_slots = 0;
}

/* --- written down ------------------------------------------------------------------------------------------ */

static void label(struct buf *out, const char *name, const char *value)
{
    if (out->len > 0)
        buf_addc(out, ',');
    buf_adds(out, name);
    buf_adds(out, "=\"");
    metric_escape(out, value);
    buf_addc(out, '"');
}

static const char *endpoint_label(const struct http *h, size_t i)
{
    size_t built_in = h->n_slots - EXTRA_COUNT;
    return i < built_in                   ? site_route(h->site, i)->ep.id
           : i == built_in + EXTRA_CUSTOM ? "custom"
                                          : "none";
}

static const char *method_label(uint8_t method)
{
    switch (method) {
    case HTTP_GET:
    case HTTP_HEAD:
    case HTTP_POST:
    case HTTP_PUT:
    case HTTP_DELETE:
    case HTTP_PATCH:
    case HTTP_OPTIONS:
        return llhttp_method_name((llhttp_method_t)method);
    default:
        return "other";
    }
}

static void write_count(struct metric_writer *w, const char *endpoint, const char *method, const char *status, uint64_t n)
{
    autobuf struct buf labels = BUF_INIT;
    label(&labels, "endpoint", endpoint);
    label(&labels, "method", method);
    label(&labels, "status", status);
    if (buf_str(&labels))
        metric_int(w, "abx_http_requests", "_total", labels.data, (int64_t)n);
}

static void write_counts(struct metric_writer *w, const char *endpoint, const struct slot *s)
{
    /* Methods that share a label are one series. */
    bool told[SLOT_CODES] = {false};
    for (size_t k = 0; k < SLOT_CODES && s->codes[k].n > 0; k++) {
        if (told[k])
            continue;
        const char *method = method_label(s->codes[k].method);
        uint64_t sum = 0;
        for (size_t j = k; j < SLOT_CODES && s->codes[j].n > 0; j++) {
            if (s->codes[j].status != s->codes[k].status || strcmp(method_label(s->codes[j].method), method) != 0)
                continue;
            told[j] = true;
            sum += s->codes[j].n;
        }
        char status[8];
        (void)snprintf(status, sizeof status, "%u", s->codes[k].status); /* three digits */
        write_count(w, endpoint, method, status, sum);
    }
    if (s->other > 0)
        write_count(w, endpoint, "other", "other", s->other);
}

static void write_times(struct metric_writer *w, const char *endpoint, const struct slot *s)
{
    static const char name[] = "abx_http_request_duration_seconds";
    autobuf struct buf labels = BUF_INIT;
    uint64_t sum = 0;
    for (size_t b = 0; b <= ARRAY_LEN(buckets); b++) {
        sum += s->buckets[b];
        buf_reset(&labels);
        label(&labels, "endpoint", endpoint);
        label(&labels, "le", b < ARRAY_LEN(buckets) ? buckets[b].le : "+Inf");
        if (buf_str(&labels))
            metric_int(w, name, "_bucket", labels.data, (int64_t)sum);
    }
    buf_reset(&labels);
    label(&labels, "endpoint", endpoint);
    if (!buf_str(&labels))
        return;
    metric_real(w, name, "_sum", labels.data, (double)s->sum_ns / NS);
    metric_int(w, name, "_count", labels.data, (int64_t)sum);
}

void http_write_metrics(const struct http *h, struct metric_writer *w)
{
    metric_family(w, "abx_http_requests", METRIC_COUNTER,
                  "Requests answered, by endpoint (custom: a template's own routes, none: no route), method and status.");
    for (size_t i = 0; i < h->n_slots; i++)
        if (h->slots[i])
            write_counts(w, endpoint_label(h, i), h->slots[i]);
    metric_family(w, "abx_http_request_duration_seconds", METRIC_HISTOGRAM,
                  "Time from the first byte of a request to its answer; of streams and WebSockets to their opening.");
    for (size_t i = 0; i < h->n_slots; i++)
        if (h->slots[i])
            write_times(w, endpoint_label(h, i), h->slots[i]);
}
