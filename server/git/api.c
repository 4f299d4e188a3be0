#include "git/diff.h"
#include "git/git.h"
#include "git/status.h"

const struct git_api abx_git_api = {.status = git_room_status, .diff = git_room_diff};
