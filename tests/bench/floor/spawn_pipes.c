/* The floor of POST /shell: THREADS threads spawn /bin/true with two pipes, read both to their end and wait.
 * spawn_pipes THREADS TOTAL -> spawns per second */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void one(void)
{
    int out[2], err[2], status;
    char piece[64], *argv[] = {"/bin/true", NULL};
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
        abort();
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0)
        abort();
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    while (read(out[0], piece, sizeof(piece)) > 0 || read(err[0], piece, sizeof(piece)) > 0)
        ;
    close(out[0]);
    close(err[0]);
    waitpid(pid, &status, 0);
}

static void *run(void *data)
{
    for (int i = *(int *)data; i > 0; i--)
        one();
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int threads = atoi(argv[1]), each = atoi(argv[2]) / threads;
    pthread_t ids[16];
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < threads && i < 16; i++)
        pthread_create(&ids[i], NULL, run, &each);
    for (int i = 0; i < threads && i < 16; i++)
        pthread_join(ids[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
    printf("%.1f\n", threads * each / seconds);
    return 0;
}
