#pragma once
#include "git/git.h"

/* git_api.status */
int git_room_status(const struct git_query *q, json_t **ret, struct abx_error *err);
