#pragma once
/* What the process endpoints share: the table of background processes and the counts per endpoint. */

#include "process/table.h"
#include "routes/app.h"
#include "routes/exec.h"

struct process_service {
    struct proc_table *table;
    size_t shells, streams; /* running now, for limits.max_processes */
};

/* limits.max_processes of the endpoint where configured. Errors: E_RESOURCE. */
int process_admit(const struct req *req, size_t running, int64_t most, struct abx_error *err);

#define PROCESS_LEAVE_GRACE_MS 2000 /* TERM to KILL when the client has left */
