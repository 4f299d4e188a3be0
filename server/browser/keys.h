#pragma once
/* Names of keys, as people write them, to what the protocol wants. Pure; any thread. */

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum key_modifier { KEY_ALT = 1, KEY_CTRL = 2, KEY_META = 4, KEY_SHIFT = 8 };

struct key {
    const char *key;  /* KeyboardEvent.key; "" when it is `text` */
    const char *code; /* KeyboardEvent.code */
    int vk;           /* legacy key code */
    char text[8];     /* what it types, UTF-8; "" = nothing */
    bool shifted;     /* typed with Shift on a US keyboard */
};

/* The key that types this character on a US keyboard; false when there is none (it is then inserted
 * as text). \n and \r are Enter, \t is Tab. */
bool key_of_char(uint32_t cp, struct key *ret);

/* "Enter", "a", "F5", "ArrowLeft", "Control+Shift+ArrowLeft", "+", "Control++". Names:
 * KeyboardEvent.key or .code values; modifiers: Alt, Control (Ctrl), Meta (Cmd), Shift,
 * ControlOrMeta. Errors: E_VALUE. */
int key_parse(const char *text, struct key *ret, int *ret_modifiers, struct abx_error *err);

/* Parameters of Input.dispatchKeyEvent. down: "keyDown" (with text) or "rawKeyDown", else "keyUp".
 * New object or NULL. */
json_t *key_event(const struct key *k, int modifiers, bool down);
