#include "git/similar.h"

#include "base/own.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* How it works: a file is cut after each newline, or after 64 bytes; a signature counts the bytes
 * of each distinct piece, sorted by its hash. What both signatures have in common over the larger
 * size is the score. A last piece without a newline doesn't count, as in git before 2.44. */

#define PIECE 64
#define BUCKETS 107927 /* git's: the same pieces must collide */

struct piece {
    uint32_t hash, bytes;
};

struct signature {
    size_t n, size;
    struct piece pieces[];
};

static int by_hash(const void *a, const void *b)
{
    uint32_t x = ((const struct piece *)a)->hash, y = ((const struct piece *)b)->hash;
    return x < y ? -1 : x > y;
}

static struct signature *make(const char *data, size_t len)
{
    bool text = !memchr(data, '\0', len < 8000 ? len : 8000);
    size_t cap = 64;
    struct signature *s = malloc(sizeof *s + cap * sizeof *s->pieces);
    if (!s)
        return NULL;
    s->n = 0;
    s->size = len;
    uint32_t a = 0, b = 0, bytes = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (text && c == '\r' && i + 1 < len && data[i + 1] == '\n')
            continue; /* line ends of either kind are alike */
        uint32_t old = a;
        a = (a << 7) ^ (b >> 25);
        b = (b << 7) ^ (old >> 25);
        a += c;
        if (++bytes < PIECE && c != '\n')
            continue;
        if (s->n == cap) {
            cap *= 2;
            struct signature *grown = realloc(s, sizeof *s + cap * sizeof *s->pieces);
            if (!grown) {
                free(s);
                return NULL;
            }
            s = grown;
        }
        s->pieces[s->n++] = (struct piece){(a + b * 0x61) % BUCKETS, bytes};
        a = b = bytes = 0;
    }
    qsort(s->pieces, s->n, sizeof *s->pieces, by_hash);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (kept > 0 && s->pieces[kept - 1].hash == s->pieces[i].hash)
            s->pieces[kept - 1].bytes += s->pieces[i].bytes;
        else
            s->pieces[kept++] = s->pieces[i];
    }
    s->n = kept;
    return s;
}

static int compare(const struct signature *a, const struct signature *b)
{
    uint64_t common = 0;
    for (size_t i = 0, k = 0; i < a->n && k < b->n;) {
        const struct piece *x = &a->pieces[i], *y = &b->pieces[k];
        if (x->hash == y->hash)
            common += x->bytes < y->bytes ? x->bytes : y->bytes;
        i += x->hash <= y->hash;
        k += y->hash <= x->hash;
    }
    size_t larger = a->size > b->size ? a->size : b->size;
    return larger ? (int)(common * 100 / larger) : 0;
}

int similar_score(const char *a, size_t a_len, const char *b, size_t b_len)
{
    autofree struct signature *x = make(a, a_len), *y = make(b, b_len);
    return x && y ? compare(x, y) : 0;
}

static int of_buffer(void **ret, const git_diff_file *file, const char *data, size_t len,
                     void *payload)
{
    *ret = make(data, len);
    return *ret ? 0 : -1;
}

static int of_file(void **ret, const git_diff_file *file, const char *path, void *payload)
{
    autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > INT32_MAX)
        return GIT_EBUFS; /* not comparable */
    char *data = st.st_size ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (data == MAP_FAILED)
        return GIT_EBUFS;
    *ret = make(data ? data : "", (size_t)st.st_size);
    if (data)
        munmap(data, (size_t)st.st_size);
    return *ret ? 0 : -1;
}

static void release(void *signature, void *payload) { free(signature); }

static int score(int *ret, void *a, void *b, void *payload)
{
    *ret = compare(a, b);
    return 0;
}

git_diff_similarity_metric similar_metric(void)
{
    return (git_diff_similarity_metric){.file_signature = of_file,
                                        .buffer_signature = of_buffer,
                                        .free_signature = release,
                                        .similarity = score};
}
