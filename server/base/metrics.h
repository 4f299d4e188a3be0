#pragma once
/* What the server counts about itself (metrics.def), and how it is written down for Prometheus.
 *
 * The figures belong to the loop and are plain integers: counting is an addition on the loop thread, without lock,
 * allocation or call. Nobody but GET /metrics reads them. */

#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>

struct metrics {
#define METRIC(field, ...) int64_t field;
#include "base/metrics.def"
#undef METRIC
    uint64_t errors[ERROR_KIND_COUNT]; /* answers that are errors, and refusals after a handshake */
};

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

/* Text formats: Prometheus 0.0.4, or OpenMetrics 1.0 (names of counter families without _total, "# EOF"). */
struct metric_writer {
    struct buf *out;
    bool openmetrics;
};

/* Begins a family. name: without _total. help: one line without backslashes. */
void metric_family(struct metric_writer *w, const char *name, enum metric_type type, const char *help);
/* One sample: name + suffix ("" or "_total", "_bucket", ...) + {labels} if not "". labels: ready text, values escaped by
 * metric_escape where they are not our own words. */
void metric_int(struct metric_writer *w, const char *name, const char *suffix, const char *labels, int64_t value);
void metric_real(struct metric_writer *w, const char *name, const char *suffix, const char *labels, double value);
/* Appends text as a label's value: backslash, quote and newline escaped. */
void metric_escape(struct buf *out, const char *text);

/* Everything of metrics.def, and the errors by code. */
void metrics_write(const struct metrics *m, struct metric_writer *w);
