#pragma once
/* The log: one line per event on stderr; JSON lines, or for people when stderr is a terminal
 * (colours unless NO_COLOR is set). Writing never blocks: stderr is written from a bounded queue;
 * what does not fit is counted and dropped, and a closed or full stderr harms nobody.
 * Any thread. Values are escaped; callers never pass secrets. */

#include "base/buf.h"

#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_start(void);             /* once, from main, before any other thread */
void log_stop(void);              /* writes what is queued, for at most 200 ms */
uint64_t log_lost(void);          /* lines that found no room or no reader, since the start */
void log_set_level(enum log_level level);

void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A ready JSON object, written as one line whatever stderr is (audit). */
void log_json_line(const char *json, size_t len);

#define log_debug(...) log_msg(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_msg(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_msg(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_msg(LOG_ERROR, __VA_ARGS__)
