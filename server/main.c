#include "cli/cli.h"

#include <fcntl.h>
#include <unistd.h>

/* Started with standard descriptors closed, the first ones we open would become them: the log would go into
 * whatever that is. */
static int fill_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR); /* children get descriptors of their own in these places */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    if (fcntl(STDIN_FILENO, F_GETFD) < 0 || fcntl(STDOUT_FILENO, F_GETFD) < 0 || fcntl(STDERR_FILENO, F_GETFD) < 0)
        if (fill_descriptors() < 0)
            return EXIT_FAILED;
    return cli_main(argc, argv);
}
