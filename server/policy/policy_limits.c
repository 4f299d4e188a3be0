/* Token buckets and concurrency, one counter per (identity, endpoint) that ever met a limit.
 *
 * A bucket that is full and a slot that is free say nothing, so such counters are dropped when the
 * table grows: reloads and many identities can't make it grow without end. */

#include "policy/policy_internal.h"

#include <math.h>
#include <string.h>

#define FIRST_SIZE 64
#define MINUTE_MS 60000u

struct limit_slot {
    struct limit_slot *next;
    uint64_t hash;
    uint64_t seen_ms;   /* when `tokens` was true */
    double tokens;
    int64_t in_use;
    bool anonymous, metered; /* metered: tokens holds something */
    char *endpoint;     /* lies behind the identity's id in the same block */
    char who[];
};

struct limits {
    struct limit_slot **buckets;
    size_t size, n; /* size: a power of two */
};

struct limits *limits_new(void)
{
    return calloc(1, sizeof(struct limits));
}

void limits_free(struct limits *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->size; i++) {
        for (struct limit_slot *s = l->buckets[i], *next; s; s = next) {
            next = s->next;
            free(s);
        }
    }
    free(l->buckets);
    free(l);
}

/* FNV-1a: the ids come from the policy, not from callers. */
static uint64_t hash_text(uint64_t h, const char *s)
{
    do {
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    } while (*s++);
    return h;
}

static int grow(struct limits *l, uint64_t now_ms)
{
    size_t size = l->size ? 2 * l->size : FIRST_SIZE;
    struct limit_slot **buckets = calloc(size, sizeof(*buckets));

    if (!buckets)
        return -1;
    for (size_t i = 0; i < l->size; i++) {
        for (struct limit_slot *s = l->buckets[i], *next; s; s = next) {
            next = s->next;
            if (s->in_use == 0 && (!s->metered || now_ms - s->seen_ms >= MINUTE_MS)) {
                free(s); /* as good as new */
                l->n--;
                continue;
            }
            s->next = buckets[s->hash & (size - 1)];
            buckets[s->hash & (size - 1)] = s;
        }
    }
    free(l->buckets);
    l->buckets = buckets;
    l->size = size;
    return 0;
}

static struct limit_slot *counter(struct limits *l, const struct rule *r, const struct identity *who,
                                  uint64_t now_ms)
{
    const struct endpoint *e = r->endpoint;
    /* One way around the other would double the rate; but who has a rate of its own is counted by it alone. */
    const char *endpoint = e->rule_of && !r->counted_alone ? e->rule_of : e->id;
    uint64_t h = hash_text(hash_text(14695981039346656037u + who->anonymous, who->id), endpoint);

    if (l->size) {
        for (struct limit_slot *s = l->buckets[h & (l->size - 1)]; s; s = s->next) {
            if (s->hash == h && s->anonymous == who->anonymous && strcmp(s->who, who->id) == 0 &&
                strcmp(s->endpoint, endpoint) == 0)
                return s;
        }
    }
    if (l->n >= l->size && grow(l, now_ms) < 0)
        return NULL;
    size_t a = strlen(who->id) + 1, b = strlen(endpoint) + 1;
    struct limit_slot *s = calloc(1, sizeof(*s) + a + b);
    if (!s)
        return NULL;
    memcpy(s->who, who->id, a);
    s->endpoint = s->who + a;
    memcpy(s->endpoint, endpoint, b);
    s->hash = h;
    s->anonymous = who->anonymous;
    s->next = l->buckets[h & (l->size - 1)];
    l->buckets[h & (l->size - 1)] = s;
    l->n++;
    return s;
}

/* Takes one token. Returns 0, or the seconds until there is one, rounded up. */
static int take_token(struct limit_slot *s, int64_t per_minute, uint64_t now_ms)
{
    double size = (double)per_minute;

    if (!s->metered) {
        s->metered = true;
        s->tokens = size;
    } else if (now_ms > s->seen_ms) {
        s->tokens += (double)(now_ms - s->seen_ms) * size / MINUTE_MS;
    }
    s->seen_ms = now_ms;
    if (s->tokens > size)
        s->tokens = size;
    if (s->tokens >= 1) {
        s->tokens -= 1;
        return 0;
    }
    double wait = ceil((1 - s->tokens) * 60 / size);
    return wait < 1 ? 1 : (int)wait;
}

int limits_admit(struct limits *l, const struct rule *r, const struct identity *who, uint64_t now_ms,
                 struct limit_slot **ret_slot, int *ret_retry_after, struct abx_error *err)
{
    int64_t rate = rule_limit(r, LIMIT_rate_per_minute, 0);
    int64_t most = rule_limit(r, LIMIT_max_concurrency, 0);

    *ret_slot = NULL;
    if (!rate && !most)
        return 0;
    struct limit_slot *s = counter(l, r, who, now_ms);
    if (!s)
        return abx_fail(err, E_NO_MEMORY, 0, "out of memory");
    if (rate) {
        int wait = take_token(s, rate, now_ms);
        if (wait) {
            *ret_retry_after = wait;
            return abx_fail(err, E_RATE_LIMITED, 0, "More than %lld requests a minute",
                            (long long)rate);
        }
    }
    if (most) {
        if (s->in_use >= most) {
            *ret_retry_after = 1;
            return abx_fail(err, E_CONCURRENCY_LIMITED, 0, "More than %lld requests at a time",
                            (long long)most);
        }
        s->in_use++;
        *ret_slot = s;
    }
    return 0;
}

void limits_release(struct limit_slot *slot)
{
    if (slot)
        slot->in_use--;
}
