/* "did you mean": likeness of two words is 2 * common / (length + length), where `common` is the
 * longest common subsequence, case aside. */

#include "policy/policy.h"

#include <ctype.h>
#include <string.h>

#define WORD_MAX 64 /* longer words are no near miss of anything we know */
#define NEAR_PERCENT 70

static size_t common(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[WORD_MAX + 1] = {0};

    for (size_t i = 0; i < na; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < nb; j++) {
            size_t above = row[j + 1];
            if (tolower((unsigned char)a[i]) == tolower((unsigned char)b[j]))
                row[j + 1] = diagonal + 1;
            else if (row[j] > row[j + 1])
                row[j + 1] = row[j];
            diagonal = above;
        }
    }
    return row[nb];
}

const char *suggest(const char *word, const char *const *words)
{
    size_t n = strlen(word), best_score = NEAR_PERCENT - 1;
    const char *best = NULL;

    if (n == 0 || n > WORD_MAX)
        return NULL;
    for (; *words; words++) {
        size_t m = strlen(*words);
        if (m == 0 || m > WORD_MAX)
            continue;
        size_t score = 200 * common(word, n, *words, m) / (n + m);
        if (score > best_score) {
            best_score = score;
            best = *words;
        }
    }
    return best;
}
