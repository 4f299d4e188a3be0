#include "browser/value.h"

#include "base/num.h"
#include "base/own.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const char *text_of(const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

static void add_string(struct buf *out, const json_t *s)
{
    if (json_is_string(s))
        buf_add(out, json_string_value(s), json_string_length(s));
}

/* --- values --------------------------------------------------------------------------------- */

static json_t *big_number(const char *digits)
{
    int64_t n;
    size_t len = strlen(digits);
    char plain[32];
    if (len > 1 && len < sizeof plain) {
        memcpy(plain, digits, len - 1); /* without its n */
        plain[len - 1] = '\0';
        if (num_parse(plain, INT64_MIN, INT64_MAX, &n) == 0)
            return json_integer(n);
    }
    return len > 0 ? json_stringn(digits, len - 1) : json_null();
}

json_t *value_of_remote(const json_t *object)
{
    const char *special = json_string_value(json_object_get(object, "unserializableValue"));
    if (special) {
        if (strcmp(special, "-0") == 0)
            return json_real(-0.0);
        if (strcmp(text_of(object, "type"), "bigint") == 0)
            return big_number(special);
        return json_null();
    }
    json_t *v = json_object_get(object, "value");
    return v ? json_incref(v) : json_null();
}

static void add_number(struct buf *out, const json_t *v)
{
    if (json_is_integer(v)) {
        buf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return;
    }
    char text[NUM_DOUBLE_MAX];
    double d = json_real_value(v);
    size_t n = isfinite(d) ? num_double(d, text) : 0;
    if (n > 2 && memcmp(text + n - 2, ".0", 2) == 0)
        n -= 2; /* as JavaScript writes it */
    buf_add(out, text, n);
}

static void add_preview(struct buf *out, const json_t *preview, bool list)
{
    const json_t *properties = json_object_get(preview, "properties"), *p;
    size_t i;
    buf_addc(out, list ? '[' : '{');
    json_array_foreach(properties, i, p)
    {
        if (i > 0)
            buf_adds(out, ", ");
        if (!list) {
            add_string(out, json_object_get(p, "name"));
            buf_adds(out, ": ");
        }
        add_string(out, json_object_get(p, "value"));
    }
    if (json_is_true(json_object_get(preview, "overflow")))
        buf_adds(out, ", ...");
    buf_addc(out, list ? ']' : '}');
}

void value_console_text(struct buf *out, const json_t *object)
{
    const char *type = text_of(object, "type");
    if (strcmp(type, "undefined") == 0) {
        buf_adds(out, "undefined");
        return;
    }
    const json_t *special = json_object_get(object, "unserializableValue");
    const json_t *v = json_object_get(object, "value");
    const json_t *preview = json_object_get(object, "preview");
    const json_t *description = json_object_get(object, "description");
    if (special)
        add_string(out, special);
    else if (json_is_string(v))
        add_string(out, v);
    else if (json_is_number(v))
        add_number(out, v);
    else if (json_is_boolean(v))
        buf_adds(out, json_is_true(v) ? "true" : "false");
    else if (json_is_null(v))
        buf_adds(out, "null");
    else if (preview && strcmp(text_of(object, "subtype"), "array") == 0)
        add_preview(out, preview, true);
    else if (preview && strcmp(json_is_string(description) ? json_string_value(description) : "",
                               "Object") == 0)
        add_preview(out, preview, false);
    else
        add_string(out, description);
}

void value_exception_text(struct buf *out, const json_t *details)
{
    const json_t *exception = json_object_get(details, "exception");
    const json_t *description = json_object_get(exception, "description");
    if (json_is_string(description))
        add_string(out, description);
    else if (exception)
        value_console_text(out, exception);
    else
        add_string(out, json_object_get(details, "text"));
}

/* --- PDF ------------------------------------------------------------------------------------ */

/* The page tree's nodes are plain objects: the root's /Count is the number of pages, and the
 * largest. */
int pdf_pages(const char *pdf, size_t len)
{
    static const char mark[] = "/Type /Pages";
    int64_t most = 1;
    for (const char *p = pdf, *end = pdf + len;;) {
        p = memmem(p, (size_t)(end - p), mark, sizeof mark - 1);
        if (!p)
            return (int)most;
        const char *stop = memmem(p, (size_t)(end - p), "endobj", 6);
        if (!stop)
            stop = end;
        const char *count = memmem(p, (size_t)(stop - p), "/Count ", 7);
        if (count) {
            int64_t n = 0;
            for (count += 7; count < stop && *count >= '0' && *count <= '9' && n < 1000000; count++)
                n = n * 10 + (*count - '0');
            if (n > most)
                most = n;
        }
        p = stop;
    }
}

bool pdf_paper(const char *name, double *ret_width, double *ret_height)
{
    static const struct {
        const char *name;
        double width, height;
    } papers[] = {
        {"A4", 8.27, 11.7},  {"Letter", 8.5, 11}, {"Legal", 8.5, 14}, {"Tabloid", 11, 17},
        {"Ledger", 17, 11},  {"A0", 33.1, 46.8},  {"A1", 23.4, 33.1}, {"A2", 16.54, 23.4},
        {"A3", 11.7, 16.54}, {"A5", 5.83, 8.27},  {"A6", 4.13, 5.83},
    };
    for (size_t i = 0; i < ARRAY_LEN(papers); i++) {
        if (strcasecmp(papers[i].name, name) == 0) {
            *ret_width = papers[i].width;
            *ret_height = papers[i].height;
            return true;
        }
    }
    return false;
}

/* --- accessibility tree --------------------------------------------------------------------- */

/* How it works. Nodes come flat with child ids; an object maps id to index, then the tree is walked
 * with a stack of its own (pages may nest thousands deep). Ignored and purely structural nodes pass
 * their children up. */

struct ax_frame {
    const json_t *children;
    size_t next;
    int depth;
};

static const json_t *ax_value(const json_t *node, const char *name)
{
    return json_object_get(json_object_get(node, name), "value");
}

static const json_t *ax_property(const json_t *node, const char *name)
{
    const json_t *list = json_object_get(node, "properties"), *p;
    size_t i;
    json_array_foreach(list, i, p)
    {
        if (strcmp(text_of(p, "name"), name) == 0)
            return json_object_get(json_object_get(p, "value"), "value");
    }
    return NULL;
}

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++) {
        if (strcmp(word, *list) == 0)
            return true;
    }
    return false;
}

/* One line of text: blanks folded, cut at 400 bytes. */
static void add_line_text(struct buf *out, const json_t *text)
{
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), n = 0;
    bool blank = false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c <= ' ') {
            blank = n > 0;
            continue;
        }
        if (n > 400 && (c & 0xC0) != 0x80) {
            buf_adds(out, "...");
            return;
        }
        if (blank)
            buf_addc(out, ' ');
        blank = false;
        if (c == '"' || c == '\\')
            buf_addc(out, '\\');
        buf_addc(out, (char)c);
        n++;
    }
}

static bool has_text(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && s[strspn(s, " \t\r\n")] != '\0';
}

static void add_states(struct buf *out, const json_t *node)
{
    static const char *const flags[] = {"checked",  "disabled", "expanded", "focused", "pressed",
                                        "selected", "required", "readonly", NULL};
    for (const char *const *f = flags; *f; f++) {
        const json_t *v = ax_property(node, *f);
        if (json_is_true(v) || (json_is_string(v) && strcmp(json_string_value(v), "true") == 0))
            buf_addf(out, " [%s]", *f);
        else if (json_is_string(v) && strcmp(json_string_value(v), "mixed") == 0)
            buf_addf(out, " [%s=mixed]", *f);
    }
    const json_t *level = ax_property(node, "level");
    if (json_is_integer(level))
        buf_addf(out, " [level=%" JSON_INTEGER_FORMAT "]", json_integer_value(level));
}

static void add_node(struct buf *out, const json_t *node, const char *role, int depth, size_t *refs)
{
    const json_t *name = ax_value(node, "name"), *value = ax_value(node, "value");
    for (int i = 0; i < depth && i < 40; i++)
        buf_adds(out, "  ");
    buf_addf(out, "- %s", role);
    if (has_text(name)) {
        buf_adds(out, " \"");
        add_line_text(out, name);
        buf_addc(out, '"');
    }
    add_states(out, node);
    const json_t *backend = json_object_get(node, "backendDOMNodeId");
    if (json_is_integer(backend) && strcmp(role, "text") != 0) {
        buf_addf(out, " [ref=e%" JSON_INTEGER_FORMAT "]", json_integer_value(backend));
        ++*refs;
    }
    if (has_text(value)) {
        buf_adds(out, ": \"");
        add_line_text(out, value);
        buf_addc(out, '"');
    }
    const json_t *url = ax_property(node, "url");
    if (strcmp(role, "link") == 0 && has_text(url)) {
        buf_adds(out, " -> ");
        add_line_text(out, url);
    }
    buf_addc(out, '\n');
}

bool ax_write(struct buf *out, const json_t *nodes, int depth, size_t max_bytes, size_t *ret_refs)
{
    static const char *const passed[] = {
        "none",         "generic",         "InlineTextBox", "RootWebArea",
        "presentation", "LayoutTableCell", "LineBreak",     NULL};
    static const char *const leaves[] = {"textbox",  "searchbox", "button",   "link",
                                         "heading",  "option",    "menuitem", "tab",
                                         "checkbox", "radio",     "switch",   NULL};
    autojson json_t *by_id = json_object();
    const json_t *node;
    size_t i;
    json_array_foreach(nodes, i, node)
    {
        json_object_set(by_id, text_of(node, "nodeId"), (json_t *)node);
    }
    const json_t *root = json_array_get(nodes, 0);
    size_t cap = 64, n = 0, visited = 0;
    autofree struct ax_frame *stack = malloc(cap * sizeof *stack);
    if (!stack || !root)
        return !stack;
    stack[n++] = (struct ax_frame){json_object_get(root, "childIds"), 0, depth};
    while (n > 0) {
        struct ax_frame *top = &stack[n - 1];
        const json_t *id = json_array_get(top->children, top->next++);
        if (!id) {
            n--;
            continue;
        }
        node = json_object_get(by_id, json_string_value(id) ? json_string_value(id) : "");
        if (!node)
            continue;
        if (out->len >= max_bytes || ++visited > json_array_size(nodes))
            return true; /* the second: a broken tree that leads back to itself */
        const char *role = json_string_value(ax_value(node, "role"));
        const json_t *name = ax_value(node, "name");
        bool ignored = json_is_true(json_object_get(node, "ignored"));
        bool is_text = role && strcmp(role, "StaticText") == 0;
        int child_depth = top->depth;
        bool enter = true;
        if (!ignored && is_text) {
            if (has_text(name))
                add_node(out, node, "text", top->depth, ret_refs);
            enter = false;
        } else if (!ignored && role && !is_one_of(role, passed)) {
            add_node(out, node, role, top->depth, ret_refs);
            child_depth++;
            /* The name of these is their text already. */
            const json_t *kids = json_object_get(node, "childIds");
            if (is_one_of(role, leaves) && json_array_size(kids) == 1) {
                const json_t *kid =
                    json_object_get(by_id, json_string_value(json_array_get(kids, 0))
                                               ? json_string_value(json_array_get(kids, 0))
                                               : "");
                const char *kid_role = json_string_value(ax_value(kid, "role"));
                enter = !(kid_role && strcmp(kid_role, "StaticText") == 0);
            }
        }
        if (!enter)
            continue;
        if (n == cap) {
            cap *= 2;
            struct ax_frame *more = realloc(stack, cap * sizeof *stack);
            if (!more)
                return true;
            stack = more;
        }
        stack[n++] = (struct ax_frame){json_object_get(node, "childIds"), 0, child_depth};
    }
    return false;
}
