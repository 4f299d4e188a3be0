#include "browser/keys.h"

#include "base/own.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct named {
    const char *key, *code;
    int vk;
    const char *text;
};

static const struct named named_keys[] = {
    {"Enter", "Enter", 13, "\r"},
    {"Tab", "Tab", 9, ""},
    {"Backspace", "Backspace", 8, ""},
    {"Delete", "Delete", 46, ""},
    {"Escape", "Escape", 27, ""},
    {" ", "Space", 32, " "},
    {"ArrowLeft", "ArrowLeft", 37, ""},
    {"ArrowUp", "ArrowUp", 38, ""},
    {"ArrowRight", "ArrowRight", 39, ""},
    {"ArrowDown", "ArrowDown", 40, ""},
    {"Home", "Home", 36, ""},
    {"End", "End", 35, ""},
    {"PageUp", "PageUp", 33, ""},
    {"PageDown", "PageDown", 34, ""},
    {"Insert", "Insert", 45, ""},
    {"Shift", "ShiftLeft", 16, ""},
    {"Control", "ControlLeft", 17, ""},
    {"Alt", "AltLeft", 18, ""},
    {"Meta", "MetaLeft", 91, ""},
    {"CapsLock", "CapsLock", 20, ""},
    {"ContextMenu", "ContextMenu", 93, ""},
    {"F1", "F1", 112, ""},
    {"F2", "F2", 113, ""},
    {"F3", "F3", 114, ""},
    {"F4", "F4", 115, ""},
    {"F5", "F5", 116, ""},
    {"F6", "F6", 117, ""},
    {"F7", "F7", 118, ""},
    {"F8", "F8", 119, ""},
    {"F9", "F9", 120, ""},
    {"F10", "F10", 121, ""},
    {"F11", "F11", 122, ""},
    {"F12", "F12", 123, ""},
};

static const struct {
    const char *word, *key;
} aliases[] = {
    {"Return", "Enter"},   {"Esc", "Escape"},       {"Space", " "},    {"Del", "Delete"},
    {"Left", "ArrowLeft"}, {"Right", "ArrowRight"}, {"Up", "ArrowUp"}, {"Down", "ArrowDown"},
};

/* A US keyboard: plain and shifted character, code, key code. */
static const struct {
    char plain, shifted;
    const char *code;
    int vk;
} signs[] = {
    {'`', '~', "Backquote", 192},   {'-', '_', "Minus", 189},        {'=', '+', "Equal", 187},
    {'[', '{', "BracketLeft", 219}, {']', '}', "BracketRight", 221}, {'\\', '|', "Backslash", 220},
    {';', ':', "Semicolon", 186},   {'\'', '"', "Quote", 222},       {',', '<', "Comma", 188},
    {'.', '>', "Period", 190},      {'/', '?', "Slash", 191},
};
static const char digit_signs[] = ")!@#$%^&*(";
static const char *const letter_codes[] = {
    "KeyA", "KeyB", "KeyC", "KeyD", "KeyE", "KeyF", "KeyG", "KeyH", "KeyI",
    "KeyJ", "KeyK", "KeyL", "KeyM", "KeyN", "KeyO", "KeyP", "KeyQ", "KeyR",
    "KeyS", "KeyT", "KeyU", "KeyV", "KeyW", "KeyX", "KeyY", "KeyZ",
};
static const char *const digit_codes[] = {
    "Digit0", "Digit1", "Digit2", "Digit3", "Digit4",
    "Digit5", "Digit6", "Digit7", "Digit8", "Digit9",
};

static void set_named(const struct named *n, struct key *ret)
{
    *ret = (struct key){.key = n->key, .code = n->code, .vk = n->vk};
    memcpy(ret->text, n->text, strlen(n->text) + 1);
}

static bool find_named(const char *name, struct key *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++) {
        if (strcasecmp(name, aliases[i].word) == 0)
            name = aliases[i].key;
    }
    for (size_t i = 0; i < ARRAY_LEN(named_keys); i++) {
        if (strcasecmp(name, named_keys[i].key) == 0 || strcasecmp(name, named_keys[i].code) == 0) {
            set_named(&named_keys[i], ret);
            return true;
        }
    }
    return false;
}

bool key_of_char(uint32_t cp, struct key *ret)
{
    if (cp == '\n' || cp == '\r')
        return find_named("Enter", ret);
    if (cp == '\t')
        return find_named("Tab", ret);
    if (cp == ' ')
        return find_named(" ", ret);
    if (cp < 0x21 || cp > 0x7E)
        return false;
    char c = (char)cp;
    *ret = (struct key){.key = "", .text = {c, '\0'}};
    char lower = (char)(c | 32);
    if (lower >= 'a' && lower <= 'z') {
        ret->code = letter_codes[lower - 'a'];
        ret->vk = 'A' + (lower - 'a');
        ret->shifted = c != lower;
        return true;
    }
    const char *sign = strchr(digit_signs, c);
    if (sign || (c >= '0' && c <= '9')) {
        int digit = sign ? (int)(sign - digit_signs) : c - '0';
        ret->code = digit_codes[digit];
        ret->vk = '0' + digit;
        ret->shifted = sign != NULL;
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(signs); i++) {
        if (signs[i].plain != c && signs[i].shifted != c)
            continue;
        ret->code = signs[i].code;
        ret->vk = signs[i].vk;
        ret->shifted = signs[i].shifted == c;
        return true;
    }
    return false;
}

static int modifier_of(const char *word, size_t len)
{
    static const struct {
        const char *word;
        int bit;
    } table[] = {
        {"Alt", KEY_ALT},  {"Control", KEY_CTRL}, {"Ctrl", KEY_CTRL},          {"Meta", KEY_META},
        {"Cmd", KEY_META}, {"Command", KEY_META}, {"ControlOrMeta", KEY_CTRL}, {"Shift", KEY_SHIFT},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (strlen(table[i].word) == len && strncasecmp(word, table[i].word, len) == 0)
            return table[i].bit;
    }
    return 0;
}

int key_parse(const char *text, struct key *ret, int *ret_modifiers, struct abx_error *err)
{
    int modifiers = 0;
    const char *p = text;
    for (const char *plus; (plus = strchr(p + (*p != '\0'), '+')) && plus[1] != '\0';
         p = plus + 1) {
        int bit = modifier_of(p, (size_t)(plus - p));
        if (bit == 0)
            return abx_fail(err, E_VALUE, 0, "Unknown modifier in key '%.60s'", text);
        modifiers |= bit;
    }
    struct key k;
    if (p[0] == '\0' || p[1] != '\0') {
        if (!find_named(p, &k)) {
            bool code = false;
            for (size_t i = 0; i < ARRAY_LEN(letter_codes) && !code; i++)
                code = strcmp(p, letter_codes[i]) == 0 && key_of_char('a' + (uint32_t)i, &k);
            for (size_t i = 0; i < ARRAY_LEN(digit_codes) && !code; i++)
                code = strcmp(p, digit_codes[i]) == 0 && key_of_char('0' + (uint32_t)i, &k);
            if (!code)
                return abx_fail(err, E_VALUE, 0, "Unknown key: '%.60s'", text);
        }
    } else if (!key_of_char((unsigned char)p[0], &k)) {
        return abx_fail(err, E_VALUE, 0, "Unknown key: '%.60s'", text);
    }
    if ((modifiers & KEY_SHIFT) && k.text[0] >= 'a' && k.text[0] <= 'z')
        k.text[0] = (char)(k.text[0] - 32);
    if (k.shifted)
        modifiers |= KEY_SHIFT;
    *ret = k;
    *ret_modifiers = modifiers;
    return 0;
}

json_t *key_event(const struct key *k, int modifiers, bool down)
{
    const char *name = *k->key ? k->key : k->text;
    bool types = k->text[0] && !(modifiers & (KEY_CTRL | KEY_ALT | KEY_META));
    json_t *e = json_pack("{s:s, s:i, s:s, s:s, s:i}", "type",
                          !down   ? "keyUp"
                          : types ? "keyDown"
                                  : "rawKeyDown",
                          "modifiers", modifiers, "key", name, "code", k->code,
                          "windowsVirtualKeyCode", k->vk);
    if (e && down && types &&
        (json_object_set_new(e, "text", json_string(k->text)) < 0 ||
         json_object_set_new(e, "unmodifiedText", json_string(k->text)) < 0)) {
        json_decref(e);
        return NULL;
    }
    return e;
}
