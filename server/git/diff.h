#pragma once
#include "git/git.h"

/* git_api.diff */
int git_room_diff(const struct git_query *q, json_t **ret, struct abx_error *err);
