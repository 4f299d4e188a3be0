#include "system/redact.h"

#include "base/own.h"

#include <string.h>
#include <strings.h>

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcasecmp(s + n - m, tail) == 0;
}

/* AUTH, but neither AUTHOR nor XAUTHORITY. */
static bool has_auth(const char *name)
{
    for (const char *at = name; (at = strcasestr(at, "AUTH")); at += 4)
        if (strncasecmp(at + 4, "OR", 2) != 0 || strncasecmp(at + 4, "ORIZATION", 9) == 0)
            return true;
    return false;
}

bool redact_name(const char *name)
{
    static const char *const parts[] = {"TOKEN",      "SECRET", "KEY",        "PASSWORD",
                                        "CREDENTIAL", "PASSWD", "PASSPHRASE", "PRIVATE"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcasestr(name, parts[i]))
            return true;
    if (strcasecmp(name, "PWD") == 0 || strcasecmp(name, "OLDPWD") == 0)
        return false;
    return has_auth(name) || ends_with(name, "PASS") || ends_with(name, "PWD");
}

/* scheme://user:pass@host, anywhere in the text. */
static bool has_url_password(const char *value)
{
    for (const char *at = value; (at = strstr(at, "://")); at += 3) {
        const char *user = at + 3;
        size_t authority = strcspn(user, "/?# \t\n\"'");
        const char *colon = memchr(user, ':', authority), *host = memrchr(user, '@', authority);
        if (colon && host && colon < host && host > colon + 1)
            return true;
    }
    return false;
}

bool redact_value(const char *value)
{
    static const char *const prefixes[] = {
        "Bearer ", "Basic ", "sk-",  "sk_live_", "rk_live_",    "ghp_",   "gho_",    "ghu_",
        "ghs_",    "ghr_",   "AKIA", "ASIA",     "github_pat_", "glpat-", "xoxa-",   "xoxb-",
        "xoxp-",   "xapp-",  "hf_",  "npm_",     "pypi-",       "AIza",   "dop_v1_", "eyJ"};
    if (has_url_password(value) || strstr(value, "PRIVATE KEY-----"))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(value, prefixes[i], n) == 0 && strlen(value) >= n + 8)
            return true;
    }
    return false;
}
