#include "policy/guards.h"

#include "base/buf.h"
#include "base/num.h"
#include "base/own.h"
#include "base/utf8.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

/* How it works: the parts of the WHATWG URL standard that decide where a browser would connect, for
 * the schemes http and https. What the standard maps (UTS 46) in ways that could spell an ASCII
 * name with other characters is refused, except fullwidth forms and the CJK full stops, which are
 * mapped. */

static int invalid(struct abx_error *err) { return abx_fail(err, E_URL_INVALID, 0, "Invalid URL"); }

static int no_memory(struct abx_error *err)
{
    return abx_fail(err, E_NO_MEMORY, 0, "Out of memory");
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* --- addresses -------------------------------------------------------------------------------- */

static bool v4_is_private(uint32_t a)
{
    static const struct {
        uint32_t net;
        int bits;
    } nets[] = {
        {0x00000000, 8},  /* "this" network, RFC 791 */
        {0x0a000000, 8},  /* private */
        {0x64400000, 10}, /* CGNAT, RFC 6598 */
        {0x7f000000, 8},  /* loopback */
        {0xa9fe0000, 16}, /* link-local (cloud metadata) */
        {0xac100000, 12}, /* private */
        {0xc0000000, 24}, /* IETF, RFC 6890 */
        {0xc0000200, 24}, /* documentation */
        {0xc0586300, 24}, /* 6to4 relays, deprecated */
        {0xc0a80000, 16}, /* private */
        {0xc6120000, 15}, /* benchmarks */
        {0xc6336400, 24}, /* documentation */
        {0xcb007100, 24}, /* documentation */
        {0xe0000000, 4},  /* multicast */
        {0xf0000000, 4},  /* reserved, broadcast */
    };
    for (size_t i = 0; i < ARRAY_LEN(nets); i++)
        if ((a ^ nets[i].net) >> (32 - nets[i].bits) == 0)
            return true;
    return false;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool v6_is_private(const uint8_t a[16])
{
    static const uint8_t zero[16] = {0}, nat64[12] = {0x00, 0x64, 0xff, 0x9b};
    if (memcmp(a, zero, 10) == 0 && (be32(a + 8) == 0xffff || be32(a + 8) == 0))
        return v4_is_private(be32(a + 12)); /* v4-mapped, v4-compatible, :: and ::1 */
    if (memcmp(a, zero, 8) == 0 && be32(a + 8) == 0xffff0000)
        return v4_is_private(be32(a + 12)); /* v4-translated, RFC 2765 */
    if (memcmp(a, nat64, 12) == 0)
        return v4_is_private(be32(a + 12));
    if (a[0] == 0x20 && a[1] == 0x02)
        return v4_is_private(be32(a + 2));   /* 6to4 */
    return (a[0] & 0xfe) == 0xfc ||          /* unique local */
           (a[0] == 0xfe && a[1] >= 0x80) || /* link-local, site-local */
           a[0] == 0xff ||                   /* multicast */
           (a[0] == 0x20 && a[1] == 0x01 &&
            a[2] < 0x02) ||         /* 2001::/23: Teredo, ORCHID, benchmarks */
           be32(a) == 0x20010db8 || /* documentation */
           (a[0] == 0x3f && a[1] == 0xff && a[2] < 0x10) || /* documentation, RFC 9637 */
           be32(a) == 0x0064ff9b ||                         /* other NAT64 prefixes */
           (a[0] == 0x01 && a[1] == 0x00 && memcmp(a + 2, zero, 6) == 0) || /* discard */
           (a[0] == 0x5f && a[1] == 0x00) ||
           a[0] == 0x00; /* SRv6; what is left of ::/8 */
}

bool address_is_private(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, addr, sizeof in);
        return v4_is_private(ntohl(in.sin_addr.s_addr));
    }
    if (addr->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, addr, sizeof in6);
        return v6_is_private(in6.sin6_addr.s6_addr);
    }
    return true; /* a local socket, or something unheard of */
}

/* --- hosts ------------------------------------------------------------------------------------ */

struct host {
    const char *text; /* normalised */
    enum { HOST_NAME, HOST_V4, HOST_V6 } kind;
    bool is_private, loopback;
};

/* Code points that UTS 46 turns into ASCII, or drops: a way to write "localhost" without its
 * letters. */
static bool is_lookalike(uint32_t cp)
{
    static const struct {
        uint32_t from, to;
    } ranges[] = {
        {0x0080, 0x00a0},    {0x00a8, 0x00a8},   {0x00aa, 0x00aa},   {0x00ad, 0x00ad},
        {0x00b2, 0x00b5},    {0x00b8, 0x00ba},   {0x00bc, 0x00be},   {0x0132, 0x0133},
        {0x013f, 0x0140},    {0x0149, 0x0149},   {0x017f, 0x017f},   {0x01c4, 0x01cc},
        {0x01f1, 0x01f3},    {0x02b0, 0x02e4},   {0x034f, 0x034f},   {0x037e, 0x037e},
        {0x061c, 0x061c},    {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},
        {0x1d2c, 0x1d6a},    {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x1e9a, 0x1e9b},
        {0x1fbd, 0x1fc1},    {0x1fef, 0x1fef},   {0x1ffd, 0x1ffe},   {0x2000, 0x20ab},
        {0x2100, 0x218f},    {0x2260, 0x2260},   {0x226e, 0x226f},   {0x2460, 0x24ff},
        {0x2a74, 0x2a76},    {0x2c7c, 0x2c7d},   {0x2ff0, 0x3001},   {0x3164, 0x3164},
        {0x3200, 0x33ff},    {0xa7f1, 0xa7f4},   {0xa69c, 0xa69d},   {0xab5b, 0xab6b},
        {0xd800, 0xf8ff},    {0xfb00, 0xfb06},   {0xfe00, 0xfe6f},   {0xfeff, 0xfeff},
        {0xffa0, 0xffa0},    {0xffe0, 0xffff},   {0x1bca0, 0x1bca3}, {0x1ccd6, 0x1ccf9},
        {0x1d173, 0x1d17a},  {0x1d400, 0x1d7ff}, {0x1f100, 0x1f1ff}, {0x1fbf0, 0x1fbf9},
        {0xe0000, 0x10ffff},
    };
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
        if (cp >= ranges[i].from && cp <= ranges[i].to)
            return true;
    return false;
}

static uint32_t map_host_char(uint32_t cp)
{
    if (cp >= 0xff01 && cp <= 0xff5e) /* fullwidth ASCII */
        cp -= 0xff01 - 0x21;
    else if (cp == 0x3002 || cp == 0xff61) /* ideographic full stops */
        return '.';
    if (cp >= 'A' && cp <= 'Z')
        return cp - 'A' + 'a';
    if ((cp >= 0xc0 && cp <= 0xde && cp != 0xd7) || (cp >= 0x391 && cp <= 0x3a9) ||
        (cp >= 0x410 && cp <= 0x42f))
        return cp + 32; /* capitals of Latin-1, Greek, Cyrillic */
    if (cp >= 0x400 && cp <= 0x40f)
        return cp + 80;
    return cp;
}

/* RFC 3492, encoding only. cps: one label. */
static void punycode(struct buf *out, const uint32_t *cps, size_t n)
{
    enum { BASE = 36, T_MIN = 1, T_MAX = 26, SKEW = 38, DAMP = 700 };
    size_t basic = 0;
    buf_adds(out, "xn--");
    for (size_t i = 0; i < n; i++)
        if (cps[i] < 0x80) {
            buf_addc(out, (char)cps[i]);
            basic++;
        }
    if (basic > 0)
        buf_addc(out, '-');

    uint64_t delta = 0;
    uint32_t at = 128, bias = 72;
    for (size_t done = basic; done < n;) {
        uint32_t next = UINT32_MAX;
        for (size_t i = 0; i < n; i++)
            if (cps[i] >= at && cps[i] < next)
                next = cps[i];
        delta += (uint64_t)(next - at) * (done + 1);
        at = next;
        for (size_t i = 0; i < n; i++) {
            delta += cps[i] < at;
            if (cps[i] != at)
                continue;
            uint64_t q = delta;
            for (uint32_t k = BASE;; k += BASE) {
                uint32_t t = k <= bias ? T_MIN : k >= bias + T_MAX ? T_MAX : k - bias;
                uint64_t digit = q < t ? q : t + (q - t) % (BASE - t);
                buf_addc(out, (char)(digit < 26 ? 'a' + (char)digit : '0' + (char)(digit - 26)));
                if (q < t)
                    break;
                q = (q - t) / (BASE - t);
            }
            delta = done == basic ? delta / DAMP : delta / 2;
            delta += delta / (done + 1);
            uint32_t k = 0;
            for (; delta > (BASE - T_MIN) * T_MAX / 2; k += BASE)
                delta /= BASE - T_MIN;
            bias = k + (uint32_t)((BASE - T_MIN + 1) * delta / (delta + SKEW));
            delta = 0;
            done++;
        }
        delta++;
        at++;
    }
}

/* One number of an IPv4 address: decimal, 0 octal, 0x hex. False: not a number. */
static bool v4_number(const char *s, size_t len, uint64_t *ret)
{
    unsigned base = 10;
    if (len >= 2 && s[0] == '0' && lower(s[1]) == 'x') {
        base = 16;
        s += 2;
        len -= 2;
    } else if (len >= 2 && s[0] == '0') {
        base = 8;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_digit(s[i]);
        if (digit < 0 || (unsigned)digit >= base)
            return false;
        value = value > UINT32_MAX ? value : value * base + (unsigned)digit;
    }
    *ret = value;
    return true;
}

/* Does the last label look like a number? Then the host is an IPv4 address or nothing. */
static bool ends_in_number(const char *host, size_t len)
{
    if (len > 0 && host[len - 1] == '.')
        len--;
    size_t start = len;
    while (start > 0 && host[start - 1] != '.')
        start--;
    if (start == len)
        return false;
    bool digits = true;
    for (size_t i = start; i < len; i++)
        digits &= host[i] >= '0' && host[i] <= '9';
    uint64_t value;
    return digits || (host[start] == '0' && v4_number(host + start, len - start, &value));
}

static bool parse_v4(const char *host, size_t len, uint32_t *ret)
{
    uint64_t parts[4];
    size_t n = 0;
    if (len > 0 && host[len - 1] == '.')
        len--;
    for (size_t i = 0; i <= len;) {
        size_t part = 0;
        while (i + part < len && host[i + part] != '.')
            part++;
        if (n == 4 || part == 0 || !v4_number(host + i, part, &parts[n]))
            return false;
        n++;
        i += part + 1;
    }
    uint64_t address = parts[n - 1];
    if (address >= (uint64_t)1 << (8 * (5 - n)))
        return false;
    for (size_t i = 0; i + 1 < n; i++) {
        if (parts[i] > 255)
            return false;
        address += parts[i] << (8 * (3 - i));
    }
    *ret = (uint32_t)address;
    return true;
}

static bool name_is_local(const char *host)
{
    static const char *const names[] = {"localhost",     "localhost.localdomain",
                                        "ip6-localhost", "ip6-loopback",
                                        "localhost6",    "localhost4"};
    size_t len = strlen(host);
    while (len > 0 && host[len - 1] == '.')
        len--;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strlen(names[i]) == len && memcmp(names[i], host, len) == 0)
            return true;
    return len > 10 && memcmp(host + len - 10, ".localhost", 10) == 0;
}

static int parse_v6(const char *text, size_t len, struct arena *arena, struct host *ret,
                    struct abx_error *err)
{
    char plain[INET6_ADDRSTRLEN];
    uint8_t addr[16];
    if (len >= sizeof plain)
        return invalid(err);
    memcpy(plain, text, len);
    plain[len] = '\0';
    if (inet_pton(AF_INET6, plain, addr) != 1)
        return invalid(err);
    static const uint8_t one[16] = {[15] = 1};
    bool mapped_loopback = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)addr) && addr[12] == 127;
    inet_ntop(AF_INET6, addr, plain, sizeof plain);
    const char *shown = arena_strdup(arena, plain);
    if (!shown)
        return no_memory(err);
    *ret = (struct host){.text = shown,
                         .kind = HOST_V6,
                         .is_private = v6_is_private(addr),
                         .loopback = memcmp(addr, one, 16) == 0 || mapped_loopback};
    return 0;
}

static bool forbidden_in_host(uint32_t cp)
{
    return cp <= 0x20 || cp == 0x7f || (cp < 0x80 && strchr("#/:<>?@[\\]^|%", (int)cp));
}

/* Percent-decodes, maps and encodes a host that is no IPv6 literal. */
static int normalise_name(const char *text, size_t len, struct arena *arena, struct buf *out,
                          struct abx_error *err)
{
    autobuf struct buf raw = BUF_INIT;
    for (size_t i = 0; i < len; i++) {
        int high = -1, low = -1;
        if (text[i] == '%' && i + 2 < len) {
            high = hex_digit(text[i + 1]);
            low = hex_digit(text[i + 2]);
        }
        if (high >= 0 && low >= 0) {
            buf_addc(&raw, (char)(high * 16 + low));
            i += 2;
        } else {
            buf_addc(&raw, text[i]);
        }
    }
    if (!buf_str(&raw))
        return no_memory(err);
    if (!utf8_valid(raw.data, raw.len))
        return invalid(err);

    uint32_t *label = arena_alloc(arena, (raw.len + 1) * sizeof *label);
    if (!label)
        return no_memory(err);
    size_t n = 0;
    bool ascii = true;
    for (size_t i = 0;;) {
        uint32_t cp = '.';
        bool end = i >= raw.len;
        if (!end) {
            i += utf8_next(raw.data + i, &cp);
            cp = map_host_char(cp);
            if (forbidden_in_host(cp) || is_lookalike(cp))
                return invalid(err);
        }
        if (cp != '.') {
            ascii &= cp < 0x80;
            label[n++] = cp;
            continue;
        }
        if (ascii)
            for (size_t k = 0; k < n; k++)
                buf_addc(out, (char)label[k]);
        else
            punycode(out, label, n);
        n = 0;
        ascii = true;
        if (end)
            break;
        buf_addc(out, '.');
    }
    return buf_str(out) ? 0 : no_memory(err);
}

static int parse_host(const char *text, size_t len, struct arena *arena, struct host *ret,
                      struct abx_error *err)
{
    if (len > 0 && text[0] == '[')
        return text[len - 1] == ']' ? parse_v6(text + 1, len - 2, arena, ret, err) : invalid(err);
    autobuf struct buf name = BUF_INIT;
    if (normalise_name(text, len, arena, &name, err) < 0)
        return -1;
    if (name.len == 0 || name.len > 255 || name.data[0] == '.')
        return invalid(err);

    uint32_t v4;
    if (!ends_in_number(name.data, name.len)) {
        const char *shown = arena_strndup(arena, name.data, name.len);
        if (!shown)
            return no_memory(err);
        bool local = name_is_local(shown);
        *ret =
            (struct host){.text = shown, .kind = HOST_NAME, .is_private = local, .loopback = local};
        return 0;
    }
    if (!parse_v4(name.data, name.len, &v4))
        return invalid(err);
    const char *shown =
        arena_printf(arena, "%u.%u.%u.%u", v4 >> 24, v4 >> 16 & 255, v4 >> 8 & 255, v4 & 255);
    if (!shown)
        return no_memory(err);
    *ret = (struct host){.text = shown,
                         .kind = HOST_V4,
                         .is_private = v4_is_private(v4),
                         .loopback = v4 >> 24 == 127};
    return 0;
}

/* --- URLs ------------------------------------------------------------------------------------- */

struct url {
    const char *scheme;
    struct host host;
    int port;
    bool default_port;
    const char *rest; /* path and query, as a browser would send them, or nearly so */
};

static bool is_slash(char c) { return c == '/' || c == '\\'; }

/* Length of a dot segment at s ("." ".." also as %2e), 0 if it is none; *ret_dots: 1 or 2. */
static size_t dot_segment(const char *s, size_t len, int *ret_dots)
{
    size_t at = 0;
    int dots = 0;
    while (at < len && dots < 3) {
        if (s[at] == '.')
            at++;
        else if (len - at >= 3 && s[at] == '%' && s[at + 1] == '2' && lower(s[at + 2]) == 'e')
            at += 3;
        else
            return 0;
        dots++;
    }
    *ret_dots = dots;
    return at == len && dots <= 2 ? at : 0;
}

/* Path with dot segments taken out and backslashes turned, then the query as it is. */
static const char *normal_rest(const char *text, size_t len, struct arena *arena)
{
    autobuf struct buf out = BUF_INIT;
    size_t path = 0;
    while (path < len && text[path] != '?' && text[path] != '#')
        path++;
    size_t query = path;
    while (query < len && text[query] != '#')
        query++;

    size_t i = path > 0 && is_slash(text[0]) ? 1 : 0;
    for (;;) {
        size_t n = 0;
        while (i + n < path && !is_slash(text[i + n]))
            n++;
        bool last = i + n >= path;
        int dots = 0;
        if (n > 0 && dot_segment(text + i, n, &dots) > 0) {
            if (dots == 2)
                while (out.len > 0 && out.data[--out.len] != '/')
                    ;
            if (last)
                buf_addc(&out, '/');
        } else {
            buf_addc(&out, '/');
            buf_add(&out, text + i, n);
        }
        if (last)
            break;
        i += n + 1;
    }
    buf_add(&out, text + path, query - path);
    return out.failed ? NULL : arena_strndup(arena, out.data, out.len);
}

static int parse_port(const char *s, size_t len, int fallback, int *ret)
{
    *ret = fallback;
    int value = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        value = value * 10 + (s[i] - '0');
        if (value > 65535)
            return -1;
    }
    if (len > 0)
        *ret = value;
    return *ret == 0 ? -1 : 0;
}

static bool scheme_is(const char *text, size_t len, const char *scheme)
{
    if (strlen(scheme) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (lower(text[i]) != scheme[i])
            return false;
    return true;
}

/* ret_web: it is http(s) with something after it, whatever is wrong otherwise. */
static int parse(const char *url, size_t len, struct arena *arena, struct url *ret, bool *ret_web,
                 struct abx_error *err)
{
    *ret_web = false;
    const char *colon = memchr(url, ':', len);
    size_t scheme = colon ? (size_t)(colon - url) : 0;
    if (!colon)
        return invalid(err);
    if (scheme_is(url, scheme, "http"))
        ret->scheme = "http";
    else if (scheme_is(url, scheme, "https"))
        ret->scheme = "https";
    else
        return invalid(err);

    /* Browsers take any number of slashes of either kind; we want at least one, so that "http:x" (a
     * relative address to some parsers) is nobody's guess. */
    size_t i = scheme + 1;
    while (i < len && is_slash(url[i]))
        i++;
    if (i == scheme + 1 || i == len)
        return invalid(err);
    size_t end = i;
    while (end < len && !is_slash(url[end]) && url[end] != '?' && url[end] != '#')
        end++;
    for (size_t k = end; k > i; k--)
        if (url[k - 1] == '@') { /* user info ends at the last one */
            i = k;
            break;
        }
    *ret_web = end > i;
    for (size_t k = 0; k < len; k++)
        if ((unsigned char)url[k] <= 0x20 || url[k] == 0x7f)
            return invalid(err);

    size_t host = i;
    if (host < end && url[host] == '[')
        while (host < end && url[host] != ']')
            host++;
    while (host < end && url[host] != ':')
        host++;
    if (host == i)
        return invalid(err);
    int port = ret->scheme[4] ? 443 : 80;
    if (parse_port(url + host + (host < end), end - host - (host < end), port, &ret->port) < 0)
        return invalid(err);
    ret->default_port = ret->port == port;
    if (parse_host(url + i, host - i, arena, &ret->host, err) < 0)
        return -1;
    ret->rest = normal_rest(url + end, len - end, arena);
    return ret->rest ? 0 : no_memory(err);
}

static const char *percent_decoded(const char *s, struct arena *arena)
{
    char *out = arena_strdup(arena, s);
    if (!out)
        return NULL;
    char *to = out;
    for (const char *p = out; *p; p++) {
        int high = *p == '%' ? hex_digit(p[1]) : -1;
        int low = high >= 0 ? hex_digit(p[2]) : -1;
        if (high >= 0 && low >= 0 && high * 16 + low != 0) {
            *to++ = (char)(high * 16 + low);
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    return out;
}

static bool read_v6(const char *text, uint8_t ret[16])
{
    char plain[INET6_ADDRSTRLEN];
    size_t len = strlen(text);
    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    if (len >= sizeof plain)
        return false;
    memcpy(plain, text, len);
    plain[len] = '\0';
    return inet_pton(AF_INET6, plain, ret) == 1;
}

bool host_is_v6(const char *entry, const char *host)
{
    uint8_t a[16], b[16];
    return strchr(entry, ':') && read_v6(entry, a) && read_v6(host, b) && memcmp(a, b, sizeof a) == 0;
}

static bool rule_hits(const char *pattern, const char *const *spellings, const char *host)
{
    if (!strpbrk(pattern, ":/"))
        return guard_glob(pattern, host);
    if (host_is_v6(pattern, pattern))
        return host_is_v6(pattern, host);
    for (; *spellings; spellings++)
        if (guard_glob(pattern, *spellings))
            return true;
    return false;
}

static bool any_hits(const struct str_list *list, const char *const *spellings, const char *host)
{
    for (size_t i = 0; list && i < list->n; i++)
        if (rule_hits(list->items[i], spellings, host))
            return true;
    return false;
}

static bool port_is_open(const struct url_rules *rules, const struct url *u)
{
    int64_t port;
    for (size_t i = 0; rules->loopback_ports && i < rules->loopback_ports->n; i++)
        if (num_parse(rules->loopback_ports->items[i], 1, 65535, &port) == 0 && port == u->port)
            return true;
    return false;
}

static int not_allowed(struct abx_error *err)
{
    return abx_fail(err, E_URL_NOT_ALLOWED, 0, "URL is not allowed by policy");
}

int url_check(const struct url_rules *rules, const char *url, size_t len, struct arena *arena,
              struct url_parts *ret, struct abx_error *err)
{
    bool limited = (rules->allow && rules->allow->n > 0) || (rules->deny && rules->deny->n > 0) ||
                   rules->block_private;
    struct url u = {.scheme = "", .rest = ""};
    struct abx_error why;
    bool web;
    if (parse(url, len, arena, &u, &web, &why) < 0) {
        if (limited && !web && why.kind != E_NO_MEMORY)
            return not_allowed(err);
        if (err)
            *err = why;
        return -1;
    }

    const char *open = u.host.kind == HOST_V6 ? "[" : "", *close = *open ? "]" : "";
    const char *origin =
        u.default_port
            ? arena_printf(arena, "%s://%s%s%s", u.scheme, open, u.host.text, close)
            : arena_printf(arena, "%s://%s%s%s:%d", u.scheme, open, u.host.text, close, u.port);
    const char *href = origin ? arena_printf(arena, "%s%s", origin, u.rest) : NULL;
    const char *decoded = href ? percent_decoded(href, arena) : NULL;
    const char *raw = arena_strndup(arena, url, len);
    if (!decoded || !raw)
        return no_memory(err);
    const char *bare = strcmp(u.rest, "/") == 0 ? origin : href;
    const char *const denied[] = {raw, href, bare, decoded, NULL}, *const allowed[] = {href, bare,
                                                                                       NULL};
    if (any_hits(rules->deny, denied, u.host.text))
        return not_allowed(err);
    if (rules->allow && rules->allow->n > 0 && !any_hits(rules->allow, allowed, u.host.text))
        return not_allowed(err);

    bool opened = u.host.loopback && port_is_open(rules, &u);
    if (u.host.is_private && !opened && !rules->allow_private) {
        if (rules->block_private)
            return not_allowed(err);
        return abx_fail(err, E_URL_DENIED, 0,
                        "Loopback, link-local and private addresses are not allowed");
    }
    *ret = (struct url_parts){
        .scheme = u.scheme, .host = u.host.text, .port = u.port, .href = href, .loopback = opened};
    return 0;
}
