/* Webhooks: one ordered queue per endpoint, libcurl's multi interface on the loop. A delivery is
 * tried three times; what could not be delivered becomes a dead letter in the store. The address is
 * judged when the socket is opened, after resolving, so what was judged is what is called. */
#include "agents/agents.h"

#include "base/crypto.h"
#include "base/json.h"
#include "base/log.h"
#include "base/own.h"
#include "policy/guards.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TRIES 3
#define TIMEOUT_MS 5000L
#define QUEUE_MAX 1000
#define DEAD_MAX 1000

struct delivery {
    struct list node; /* endpoint.queue */
    char id[AG_ID_MAX];
    char *body;
    int tries;
};

struct endpoint_hook {
    struct list node;
    struct hooks *h;
    char id[AG_ID_MAX];
    char *owner, *url, *secret;
    json_t *types;
    struct list queue;
    size_t n_queue;
    struct call *active;
    struct timer retry;
};

struct call {         /* one request under way */
    struct list node; /* hooks.calls */
    struct hooks *h;
    CURL *easy;
    struct curl_slist *headers;
    struct endpoint_hook *ep; /* NULL: a test */
    struct delivery *d;
    bool refused;
    void (*done)(void *data, int status, const char *why);
    void *data;
};

struct sock {
    struct list node;
    struct hooks *h;
    struct io io;
    curl_socket_t fd;
};

struct hooks {
    struct agents *ag;
    struct list endpoints, calls, socks;
    CURLM *multi;
    struct timer timer;
};

static void next(struct endpoint_hook *ep);
static void call_end(struct call *c, CURLcode rc);

static void check(struct hooks *h)
{
    CURLMsg *msg;
    int left;
    while ((msg = curl_multi_info_read(h->multi, &left))) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        struct call *c = NULL;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        call_end(c, msg->data.result);
    }
}

static void on_sock(void *data, int events)
{
    struct sock *s = data;
    struct hooks *h = s->h;
    int flags = events < 0 ? CURL_CSELECT_ERR
                           : ((events & UV_READABLE) ? CURL_CSELECT_IN : 0) |
                                 ((events & UV_WRITABLE) ? CURL_CSELECT_OUT : 0);
    int running;
    curl_multi_socket_action(h->multi, s->fd, flags, &running);
    check(h);
}

static int want_sock(CURL *easy, curl_socket_t fd, int what, void *data, void *sock_data)
{
    struct hooks *h = data;
    struct sock *s = sock_data;
    if (what == CURL_POLL_REMOVE) {
        if (s) {
            io_done(&s->io);
            list_remove(&s->node);
            free(s);
            curl_multi_assign(h->multi, fd, NULL);
        }
        return 0;
    }
    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            return -1;
        s->h = h;
        s->fd = fd;
        list_init(&s->node);
        if (io_init(&s->io, h->ag->d.loop, fd, on_sock, s) < 0) {
            free(s);
            return -1;
        }
        list_append(&h->socks, &s->node);
        curl_multi_assign(h->multi, fd, s);
    }
    io_want(&s->io,
            ((what & CURL_POLL_IN) ? UV_READABLE : 0) | ((what & CURL_POLL_OUT) ? UV_WRITABLE : 0));
    return 0;
}

static void on_timer(void *data)
{
    struct hooks *h = data;
    int running;
    curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    check(h);
}

static int want_timer(CURLM *multi, long ms, void *data)
{
    struct hooks *h = data;
    if (ms < 0)
        timer_stop(&h->timer);
    else
        timer_start(&h->timer, (uint64_t)ms);
    return 0;
}

struct hooks *hooks_new(struct agents *ag)
{
    struct hooks *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    h->ag = ag;
    list_init(&h->endpoints);
    list_init(&h->calls);
    list_init(&h->socks);
    timer_init(&h->timer, ag->d.loop, on_timer, h);
    return h;
}

/* libcurl is set up when the first request is made. */
static bool ready(struct hooks *h)
{
    if (h->multi)
        return true;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(h->multi = curl_multi_init()))
        return false;
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, want_sock);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, want_timer);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, 32L);
    return true;
}

static void delivery_free(struct delivery *d)
{
    list_remove(&d->node);
    free(d->body);
    free(d);
}

static void endpoint_free(struct endpoint_hook *ep)
{
    timer_done(&ep->retry);
    if (ep->active)
        ep->active->ep = NULL;
    list_for_each_safe(it, &ep->queue) delivery_free(list_entry(it, struct delivery, node));
    list_remove(&ep->node);
    if (ep->secret)
        crypto_wipe(ep->secret, strlen(ep->secret));
    free(ep->owner);
    free(ep->url);
    free(ep->secret);
    json_decref(ep->types);
    free(ep);
}

static void call_free(struct call *c)
{
    list_remove(&c->node);
    if (c->easy) {
        curl_multi_remove_handle(c->h->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    curl_slist_free_all(c->headers);
    if (c->d)
        delivery_free(c->d);
    free(c);
}

void hooks_free(struct hooks *h)
{
    if (!h)
        return;
    list_for_each_safe(it, &h->calls)
    {
        struct call *c = list_entry(it, struct call, node);
        if (c->ep)
            c->ep->active = NULL;
        call_free(c);
    }
    list_for_each_safe(e, &h->endpoints) endpoint_free(list_entry(e, struct endpoint_hook, node));
    if (h->multi)
        curl_multi_cleanup(h->multi);
    list_for_each_safe(s, &h->socks)
    {
        struct sock *so = list_entry(s, struct sock, node);
        io_done(&so->io);
        free(so);
    }
    timer_done(&h->timer);
    free(h);
}

static curl_socket_t open_socket(void *data, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct call *c = data;
    if (!c->h->ag->set.private_urls && address_is_private(&address->addr)) {
        c->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t ignore(char *data, size_t size, size_t n, void *owner) { return size * n; }

static struct call *call_start(struct hooks *h, const char *url, const char *secret, const char *id,
                               const char *body)
{
    struct call *c = ready(h) ? calloc(1, sizeof(*c)) : NULL;
    if (!c)
        return NULL;
    c->h = h;
    list_init(&c->node);
    c->easy = curl_easy_init();
    autobuf struct buf key = BUF_INIT, text = BUF_INIT, line = BUF_INIT;
    const char *b64 = strncmp(secret, "whsec_", 6) == 0 ? secret + 6 : secret;
    if (!c->easy || base64_decode(&key, b64, strlen(b64)) < 0) {
        call_free(c);
        return NULL;
    }
    long long now = (long long)time(NULL);
    buf_addf(&text, "%s.%lld.", id, now);
    buf_adds(&text, body);
    uint8_t mac[SHA256_LEN];
    hmac_sha256(key.data, key.len, text.data, text.len, mac);
    crypto_wipe(key.data, key.len);
    c->headers = curl_slist_append(c->headers, "Content-Type: application/json");
    c->headers = curl_slist_append(c->headers, "User-Agent: agent-sandbox-agents-local");
    c->headers = curl_slist_append(c->headers, "Expect:");
    buf_addf(&line, "webhook-id: %s", id);
    c->headers = curl_slist_append(c->headers, buf_str(&line));
    buf_reset(&line);
    buf_addf(&line, "webhook-timestamp: %lld", now);
    c->headers = curl_slist_append(c->headers, buf_str(&line));
    buf_reset(&line);
    buf_adds(&line, "webhook-signature: v1,");
    base64_append(&line, mac, sizeof(mac));
    c->headers = curl_slist_append(c->headers, buf_str(&line));

    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, (char *)c);
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(body));
    curl_easy_setopt(c->easy, CURLOPT_COPYPOSTFIELDS, body);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_QUICK_EXIT, 1L); /* else giving up waits for the look-up of the name */
    curl_easy_setopt(c->easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c->easy, CURLOPT_PROXY, ""); /* a proxy would call what the guard forbids */
    curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, ignore);
    curl_easy_setopt(c->easy, CURLOPT_MAXFILESIZE, 1048576L);
    curl_easy_setopt(c->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(c->easy, CURLOPT_OPENSOCKETDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_FORBID_REUSE, 1L);
    if (curl_multi_add_handle(h->multi, c->easy) != CURLM_OK) {
        call_free(c);
        return NULL;
    }
    list_append(&h->calls, &c->node);
    return c;
}

static void dead_letter(struct endpoint_hook *ep, struct delivery *d, const char *why)
{
    log_warn("agents: webhook %s: event %s was not delivered: %s", ep->id, d->id, why);
    store_post(ep->h->ag->store,
               "INSERT INTO dead_letters(endpoint, event, body, reason, at) VALUES(?,?,?,?,?)",
               "ssssd", ep->id, d->id, d->body, why, wall_seconds());
    store_post(ep->h->ag->store,
               "DELETE FROM dead_letters WHERE rid <= (SELECT max(rid) FROM dead_letters) - ?", "i",
               (int64_t)DEAD_MAX);
}

static void call_end(struct call *c, CURLcode rc)
{
    struct endpoint_hook *ep = c->ep;
    long status = 0;
    char why[160];
    if (rc == CURLE_OK)
        curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (c->refused)
        snprintf(why, sizeof(why), "the address is not a public one");
    else if (rc != CURLE_OK)
        snprintf(why, sizeof(why), "%s", curl_easy_strerror(rc));
    else
        snprintf(why, sizeof(why), "status %ld", status);
    if (c->done)
        c->done(c->data, (int)status, why);
    if (!ep) {
        call_free(c);
        return;
    }
    struct delivery *d = c->d;
    c->d = NULL;
    ep->active = NULL;
    call_free(c);
    if (status >= 200 && status < 300) {
        delivery_free(d);
        ep->n_queue--;
        next(ep);
    } else if (++d->tries >= TRIES) {
        dead_letter(ep, d, why);
        delivery_free(d);
        ep->n_queue--;
        next(ep);
    } else {
        timer_start(&ep->retry,
                    (uint64_t)ep->h->ag->set.webhook_backoff_ms << (2 * (d->tries - 1)));
    }
}

static void next(struct endpoint_hook *ep)
{
    if (ep->active || timer_running(&ep->retry) || list_empty(&ep->queue))
        return;
    struct delivery *d = list_entry(ep->queue.next, struct delivery, node);
    struct call *c = call_start(ep->h, ep->url, ep->secret, d->id, d->body);
    if (!c) {
        timer_start(&ep->retry, 1000);
        return;
    }
    c->ep = ep;
    c->d = d;
    ep->active = c;
}

static void on_retry(void *data) { next(data); }

bool hooks_any(const struct hooks *h, const char *owner)
{
    list_for_each(it, &h->endpoints) if (strcmp(list_entry(it, struct endpoint_hook, node)->owner,
                                                owner) == 0) return true;
    return false;
}

static struct endpoint_hook *find(struct hooks *h, const char *id)
{
    list_for_each(it, &h->endpoints)
    {
        struct endpoint_hook *ep = list_entry(it, struct endpoint_hook, node);
        if (strcmp(ep->id, id) == 0)
            return ep;
    }
    return NULL;
}

void hooks_set(struct hooks *h, const char *id, const char *owner, const json_t *doc)
{
    struct endpoint_hook *ep = find(h, id);
    if (!ep) {
        ep = calloc(1, sizeof(*ep));
        if (!ep)
            return;
        ep->h = h;
        ep->owner = strdup(owner);
        snprintf(ep->id, sizeof(ep->id), "%s", id);
        list_init(&ep->node);
        list_init(&ep->queue);
        timer_init(&ep->retry, h->ag->d.loop, on_retry, ep);
        list_append(&h->endpoints, &ep->node);
    }
    free(ep->url);
    free(ep->secret);
    json_decref(ep->types);
    const char *url = json_string_value(json_object_get(doc, "url"));
    const char *secret = json_string_value(json_object_get(doc, "_secret"));
    ep->url = strdup(url ? url : "");
    ep->secret = strdup(secret ? secret : "");
    ep->types = json_deep_copy(json_object_get(doc, "event_types"));
    if (!ep->owner || !ep->url || !ep->secret)
        endpoint_free(ep);
}

void hooks_remove(struct hooks *h, const char *id)
{
    struct endpoint_hook *ep = find(h, id);
    if (!ep)
        return;
    if (ep->active) {
        struct call *c = ep->active;
        c->ep = NULL;
        ep->active = NULL;
        call_free(c);
    }
    endpoint_free(ep);
}

static char *event_body(const char *id, const char *type, const char *session,
                        const char *environment)
{
    autojson json_t *o =
        json_pack("{s:s, s:s, s:I, s:s, s:{s:s, s:s, s:s?}}", "id", id, "object", "event",
                  "created_at", (json_int_t)time(NULL), "type", type, "data", "id", session,
                  "environment_type", "self_hosted", "environment_id", environment);
    return o ? ag_compact(o) : NULL;
}

void hooks_fire(struct hooks *h, const struct session *s, const char *type)
{
    if (!h) /* the server stops */
        return;
    list_for_each(it, &h->endpoints)
    {
        struct endpoint_hook *ep = list_entry(it, struct endpoint_hook, node);
        bool wanted = false;
        size_t i;
        json_t *v;
        json_array_foreach(ep->types, i, v) wanted =
            wanted || strcmp(json_string_value(v), type) == 0;
        if (!wanted || strcmp(ep->owner, s->owner) != 0)
            continue;
        struct delivery *d = calloc(1, sizeof(*d));
        if (!d)
            return;
        list_init(&d->node);
        agents_new_id("evt_", d->id);
        d->body =
            event_body(d->id, type, s->id, json_string_value(json_object_get(s->cfg, "env_id")));
        if (!d->body) {
            free(d);
            return;
        }
        if (ep->n_queue >= QUEUE_MAX) {
            dead_letter(ep, d, "too many events wait for this endpoint");
            delivery_free(d);
            continue;
        }
        list_append(&ep->queue, &d->node);
        ep->n_queue++;
        next(ep);
    }
}

int hooks_test(struct hooks *h, const char *id, const char *type,
               void (*done)(void *data, int status, const char *why), void *data,
               struct ag_error *e)
{
    struct endpoint_hook *ep = find(h, id);
    if (!ep)
        return ag_unknown(e, "webhook_endpoint_id", "webhook endpoint", id);
    char event[AG_ID_MAX];
    agents_new_id("evt_", event);
    autofree char *body = event_body(event, type, "agsess_test", NULL);
    struct call *c = body ? call_start(h, ep->url, ep->secret, event, body) : NULL;
    if (!c)
        return ag_fail(e, 400, "agents.webhook_delivery_failed", "url",
                       "url: the request could not be made");
    c->done = done;
    c->data = data;
    return 0;
}
