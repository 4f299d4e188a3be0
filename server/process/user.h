#pragma once
/* Users of this machine, as a spawn needs them. */

#include <stdint.h>
#include <sys/types.h>

#define USER_GROUPS_MAX 256

struct user {
    int64_t uid, gid;
    char name[64], home[4096]; /* "" when the number has no entry */
    gid_t groups[USER_GROUPS_MAX];
    size_t n_groups;
};

/* name: a login name, or a number in decimal (which needs no entry). Any thread; reads the user data base.
 * -1: unknown. */
int user_find(const char *name, struct user *ret);
