/* Runs a fuzz target once for every file of a corpus directory, and for some cuts of each: the form in which a
 * target runs as a normal test. */

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_BYTES (16 * 1024 * 1024)

static int replay(const char *path)
{
    FILE *file = fopen(path, "rbe");
    uint8_t *data = malloc(INPUT_BYTES);
    if (!file || !data) {
        perror(path);
        return -1;
    }
    size_t size = fread(data, 1, INPUT_BYTES, file);
    fclose(file);
    size_t step = size / 64 + 1;
    for (size_t len = 0; len < size; len += step) {
        /* An exact copy, so that a sanitizer sees a read past the end. */
        uint8_t *cut = malloc(len ? len : 1);
        for (size_t i = 0; cut && i < len; i++)
            cut[i] = data[i];
        if (cut)
            LLVMFuzzerTestOneInput(cut, len);
        free(cut);
    }
    uint8_t *whole = realloc(data, size ? size : 1);
    LLVMFuzzerTestOneInput(whole ? whole : data, size);
    free(whole ? whole : data);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    int n = 0, failed = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        char path[PATH_MAX];
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], d->d_name);
        failed |= replay(path);
        n++;
    }
    closedir(dir);
    printf("%d inputs\n", n);
    return failed || !n;
}
