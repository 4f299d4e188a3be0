/* Whatever an archive holds, nothing outside its directory changes. */

#include "base/own.h"
#include "files/archive.h"
#include "files/tree.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool never(void *data) { return false; }

static unsigned entries(const char *path)
{
    DIR *d = opendir(path);
    assert(d);
    unsigned n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char top[] = "/tmp/abx-fuzz-XXXXXX", root[64];
    assert(mkdtemp(top));
    snprintf(root, sizeof root, "%s/root", top);
    assert(mkdir(root, 0755) == 0);
    struct guard *g;
    assert(guard_new(&(struct guard_config){.base_dir = root}, &g, NULL) == 0);
    autoclose int fd = memfd_create("archive", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    struct arena arena;
    arena_init(&arena);
    struct extract_order order = {.guard = g,
                                  .path = "x/y",
                                  .path_len = 3,
                                  .max_files = 100,
                                  .max_bytes = 1 << 20,
                                  .cancelled = never};
    struct extract_result result;
    struct abx_error err;
    if (abx_archive_extract(&order, fd, &arena, &result, &err) == 0)
        assert(result.entries <= 100 && result.bytes <= 1 << 20);
    unsigned in_top = entries(top), in_root = entries(root);
    assert(in_top == 3 && in_root <= 3); /* with . and .. */
    snprintf(root, sizeof root, "%s/root/x", top);
    assert(access(root, F_OK) < 0 || entries(root) <= 3);
    arena_done(&arena);
    guard_free(g);
    assert(tree_remove(AT_FDCWD, top, top, NULL) == 0);
    return 0;
}
