#include "base/metrics.h"

#include "base/num.h"
#include "base/own.h"

#include <stdio.h>
#include <string.h>

static const char *const type_names[] = {[METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge",
                                          [METRIC_HISTOGRAM] = "histogram"};

void metric_family(struct metric_writer *w, const char *name, enum metric_type type, const char *help)
{
    const char *total = type == METRIC_COUNTER && !w->openmetrics ? "_total" : "";
    buf_addf(w->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, total, help, name, total, type_names[type]);
}

static void sample(struct metric_writer *w, const char *name, const char *suffix, const char *labels)
{
    buf_adds(w->out, name);
    buf_adds(w->out, suffix);
    if (*labels) {
        buf_addc(w->out, '{');
        buf_adds(w->out, labels);
        buf_addc(w->out, '}');
    }
}

void metric_int(struct metric_writer *w, const char *name, const char *suffix, const char *labels, int64_t value)
{
    sample(w, name, suffix, labels);
    buf_addf(w->out, " %lld\n", (long long)value);
}

void metric_real(struct metric_writer *w, const char *name, const char *suffix, const char *labels, double value)
{
    char text[NUM_DOUBLE_MAX];
    sample(w, name, suffix, labels);
    buf_addc(w->out, ' ');
    buf_add(w->out, text, num_double(value, text));
    buf_addc(w->out, '\n');
}

void metric_escape(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            buf_addc(out, '\\');
        if (*text == '\n')
            buf_adds(out, "\\n");
        else
            buf_addc(out, *text);
    }
}

static const struct {
    size_t offset;
    enum metric_type type;
    const char *name, *labels, *help;
} rows[] = {
#define METRIC(field, type, name, labels, help) {offsetof(struct metrics, field), METRIC_##type, name, labels, help},
#include "base/metrics.def"
#undef METRIC
};

static bool same_error(size_t a, size_t b)
{
    const char *type[2], *code[2];
    error_wire(a, &type[0], &code[0]);
    error_wire(b, &type[1], &code[1]);
    return strcmp(type[0], type[1]) == 0 &&
           (code[0] && code[1] ? strcmp(code[0], code[1]) == 0 : !code[0] && !code[1]);
}

/* Kinds that look alike on the wire are one series. */
static void write_errors(const struct metrics *m, struct metric_writer *w)
{
    metric_family(w, "abx_http_errors", METRIC_COUNTER, "Answers that are errors, by type and code (empty: it has none) as clients see them.");
    for (size_t i = 0; i < ERROR_KIND_COUNT; i++) {
        uint64_t sum = 0;
        bool first = true;
        for (size_t k = 0; k < ERROR_KIND_COUNT; k++) {
            if (!same_error(i, k))
                continue;
            sum += m->errors[k];
            first = first && k >= i;
        }
        if (!first || sum == 0)
            continue;
        const char *type, *code;
        error_wire(i, &type, &code);
        char labels[160];
        (void)snprintf(labels, sizeof labels, "type=\"%s\",code=\"%s\"", type, code ? code : ""); /* our own words: they fit */
        metric_int(w, "abx_http_errors", "_total", labels, (int64_t)sum);
    }
}

void metrics_write(const struct metrics *m, struct metric_writer *w)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (i == 0 || strcmp(rows[i].name, rows[i - 1].name) != 0)
            metric_family(w, rows[i].name, rows[i].type, rows[i].help);
        metric_int(w, rows[i].name, rows[i].type == METRIC_COUNTER ? "_total" : "", rows[i].labels,
                   *(const int64_t *)((const char *)m + rows[i].offset));
    }
    write_errors(m, w);
}
