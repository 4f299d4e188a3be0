/* GET /metrics: what the server counts about itself, as Prometheus reads it. docs/metrics.md has the families. */

#include "base/log.h"
#include "base/metrics.h"
#include "http/req.h"
#include "routes/app.h"
#include "routes/table.h"
#include "system/self.h"

#include <string.h>
#include <stdlib.h>

static void family_int(struct metric_writer *w, const char *name, enum metric_type type, const char *help, int64_t value)
{
    metric_family(w, name, type, help);
    metric_int(w, name, type == METRIC_COUNTER ? "_total" : "", "", value);
}

static void family_real(struct metric_writer *w, const char *name, enum metric_type type, const char *help, double value)
{
    metric_family(w, name, type, help);
    metric_real(w, name, type == METRIC_COUNTER ? "_total" : "", "", value);
}

/* The names that every Prometheus client library uses. */
static void write_self(struct metric_writer *w)
{
    struct self self;
    self_read(&self);
    family_real(w, "process_cpu_seconds", METRIC_COUNTER, "CPU time of the server itself.", self.cpu_seconds);
    if (self.resident >= 0) {
        family_int(w, "process_resident_memory_bytes", METRIC_GAUGE, "Resident memory of the server itself.", self.resident);
        family_int(w, "process_virtual_memory_bytes", METRIC_GAUGE, "Virtual memory of the server itself.", self.virtual_bytes);
        family_int(w, "process_threads", METRIC_GAUGE, "Threads of the server itself.", self.threads);
    }
    if (self.open_fds >= 0)
        family_int(w, "process_open_fds", METRIC_GAUGE, "Open file descriptors.", self.open_fds);
    if (self.max_fds >= 0)
        family_int(w, "process_max_fds", METRIC_GAUGE, "Most file descriptors that may be open.", self.max_fds);
    if (self.started_at > 0)
        family_real(w, "process_start_time_seconds", METRIC_GAUGE, "Start of the server, in Unix time.", self.started_at);
}

/* Accept: does it name OpenMetrics? (q values are not weighed: who names it can read it.) */
static bool wants_openmetrics(const struct req *req)
{
    const char *accept = req_header(req, "accept");
    return accept && strcasestr(accept, "application/openmetrics-text");
}

/* GET /metrics -> text/plain; version=0.0.4, or OpenMetrics when Accept names it. On the loop: the figures are its own. */
int route_metrics(struct req *req, struct resp *resp, struct abx_error *err)
{
    struct app *app = req_app(req);
    struct buf out = BUF_INIT;
    struct metric_writer w = {.out = &out, .openmetrics = wants_openmetrics(req)};
    metric_family(&w, "abx_build_info", METRIC_GAUGE, "1; the label is the server's version.");
    metric_int(&w, "abx_build_info", "", "version=\"" ABX_VERSION_STRING "\"", 1);
    http_write_metrics(app->http, &w);
    metrics_write(loop_metrics(app->loop), &w);
    family_int(&w, "abx_log_lines_dropped", METRIC_COUNTER,
               "Lines of the log and the audit that were lost because nobody read stderr.", (int64_t)log_lost());
    write_self(&w);
    if (w.openmetrics)
        buf_adds(&out, "# EOF\n");
    size_t len;
    char *text = buf_take(&out, &len);
    if (!text) {
        buf_done(&out);
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    }
    if (resp_header(resp, "Cache-Control", "no-store", err) < 0 || resp_header(resp, "Vary", "Accept", err) < 0) {
        buf_done(&out);
        free(text);
        return -1;
    }
    return resp_take(resp,
                     w.openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                   : "text/plain; version=0.0.4; charset=utf-8",
                     text, len);
}
