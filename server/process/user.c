#include "process/user.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>

#include "base/num.h"

int user_find(const char *name, struct user *ret)
{
    char buf[8192];
    struct passwd pw, *found = NULL;
    int64_t uid = -1;
    (void)getpwnam_r(name, &pw, buf, sizeof(buf), &found);
    if (!found) {
        if (num_parse(name, 0, UINT32_MAX - 1, &uid) < 0)
            return -1;
        (void)getpwuid_r((uid_t)uid, &pw, buf, sizeof(buf), &found);
    }
    *ret = (struct user){.uid = uid, .gid = uid};
    if (!found)
        return 0;
    ret->uid = pw.pw_uid;
    ret->gid = pw.pw_gid;
    snprintf(ret->name, sizeof(ret->name), "%s", pw.pw_name);
    snprintf(ret->home, sizeof(ret->home), "%s", pw.pw_dir);
    int n = USER_GROUPS_MAX;
    ret->n_groups = getgrouplist(pw.pw_name, pw.pw_gid, ret->groups, &n) < 0 ? USER_GROUPS_MAX : (size_t)n;
    return 0;
}
