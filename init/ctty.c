/* Loaded into CRIU when it restores: a session has its controlling terminal before it has children.
 *
 * A process gets one when it leads a session, or from its parent when it is forked; there is no
 * other way. CRIU opens terminals when all processes are forked, and so gives them to the leaders
 * alone: a shell within a shell would have no job control, and could not open /dev/tty. So the
 * terminals are made here first, by CRIU's own process, when it begins to read the images. Each
 * leader takes its own as soon as it leads, and CRIU gets these where it would make them. The rest
 * is CRIU's; it has the leader take the terminal once more, which changes nothing.
 *
 * `ttys` among the images says which: a number and the session's (0: none) in each line, ascending.
 * From the first that cannot be made on, CRIU does as it would by itself. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 64

static struct tty {
    int index, session;
    int master;             /* of CRIU's own process, until it ends */
} ttys[MOST];
static int count;
static int given;           /* of those, to the caller that tries one after the other */
static pid_t maker;

static int really_open(int dir, const char *path, int flags, int mode)
{
    return syscall(SYS_openat, dir, path, flags, mode);
}

static bool ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), wanted = strlen(end);
    return length >= wanted && strcmp(path + length - wanted, end) == 0;
}

static int open_slave(int index)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/pts/%d", index);
    return really_open(AT_FDCWD, path, O_RDWR | O_NOCTTY | O_CLOEXEC, 0);
}

/* The kernel gives the lowest free number. */
static bool make(struct tty *t)
{
    int spare[MOST], spares = 0, unlocked = 0, number = -1, fd;
    while ((fd = really_open(AT_FDCWD, "/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC, 0)) >= 0) {
        if (syscall(SYS_ioctl, fd, TIOCGPTN, &number) < 0 || number >= t->index || spares == MOST)
            break;
        spare[spares++] = fd;
    }
    while (spares > 0)
        close(spare[--spares]);
    if (fd < 0)
        return false;
    /* A slave side stays open, too: with the last one closed the session would lose the terminal.
     * It had one open where it comes from, or it would not be the terminal's. */
    if (number == t->index && syscall(SYS_ioctl, fd, TIOCSPTLCK, &unlocked) == 0 &&
        (t->session == 0 || open_slave(number) >= 0)) {
        t->master = fd;
        return true;
    }
    close(fd);
    return false;
}

static void make_all(int images)
{
    int fd = really_open(images, "ttys", O_RDONLY | O_CLOEXEC, 0);
    FILE *list = fd < 0 ? NULL : fdopen(fd, "r");
    if (!list)
        return;
    maker = getpid();
    while (count < MOST && fscanf(list, "%d %d", &ttys[count].index, &ttys[count].session) == 2 &&
           make(&ttys[count]))
        count++;
    fclose(list);
}

static int handed_over(int fd)
{
    int process = syscall(SYS_pidfd_open, maker, 0);
    int copy = process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, fd, 0);
    if (process >= 0)
        close(process);
    return copy;
}

int openat64(int dir, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, int) : 0;
    va_end(rest);
    if (!maker && ends_with(path, "pstree.img"))
        make_all(dir);
    if (given < count && ends_with(path, "ptmx")) {
        int fd = handed_over(ttys[given++].master);
        if (fd >= 0 && fcntl(fd, F_SETFL, flags & O_NONBLOCK) == 0 && fcntl(fd, F_SETFD, 0) == 0)
            return fd;
    }
    return really_open(dir, path, flags, mode);
}

/* What CRIU does to the one it was looking for: the next search begins anew. */
int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (request == TIOCSPTLCK)
        given = 0;
    return syscall(SYS_ioctl, fd, request, argument);
}

pid_t setsid(void)
{
    pid_t session = syscall(SYS_setsid);
    for (int i = 0; session > 0 && i < count; i++) {
        if (ttys[i].session != session)
            continue;
        int fd = open_slave(ttys[i].index);
        if (fd >= 0) {
            syscall(SYS_ioctl, fd, TIOCSCTTY, 0);
            close(fd);
        }
    }
    return session;
}
