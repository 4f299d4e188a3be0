#pragma once
/* Which environment variables GET /env leaves out: by name, by what the value looks like, and
 * because the value is a secret's. Pure; any thread. */

#include <stdbool.h>

/* TOKEN, SECRET, KEY, PASSWORD, CREDENTIAL, PASSWD, PASSPHRASE, PRIVATE, AUTH (not AUTHOR)
 * anywhere, PASS or PWD at the end (not PWD and OLDPWD themselves); in any case. */
bool redact_name(const char *name);

/* A password in a URL (scheme://user:pass@), a PEM private key, a JWT, an Authorization value, or
 * the beginning of a well-known provider's token. */
bool redact_value(const char *value);
