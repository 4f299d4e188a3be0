#pragma once
/* The child of one running turn. Loop thread; see agents.h for runner_start and runner_cancel. */

#include "agents/agents.h"

struct runner;

const struct redact *runner_redact(const struct runner *r);
struct list *runner_items(struct runner *r); /* open items of the turn */
bool runner_count_subentry(struct runner *r);
void runner_free(struct runner *r);

/* turn.c, for the runner */
bool turn_tool_runs(const struct turn *t);
void turn_close_items(struct turn *t);
/* session.c: a session that is being deleted and has no turn left goes. */
void session_settle(struct session *s);
