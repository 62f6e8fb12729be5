#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"

uint64_t clock_ns(int clock)
{
    struct timespec now;
    clock_gettime((clockid_t)clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pause_us(unsigned microseconds)
{
    struct timespec t = {.tv_sec = microseconds / 1000000,
                         .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&t, NULL);
}

/* Out of memory the guard cannot keep its promises, and its death ends the session: fail closed. */
void *must_realloc(void *old, size_t size)
{
    void *new = realloc(old, size);
    if (!new)
        die(1, "out of memory; give the session more");
    return new;
}

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The kernel lists them by number, so closing one does not hide another. */
static bool close_listed(unsigned first, unsigned last)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return false;
    for (struct dirent *e; (e = readdir(dir));) {
        unsigned fd = (unsigned)atoi(e->d_name);
        if (fd >= first && fd <= last && (int)fd != dirfd(dir))
            close((int)fd);
    }
    closedir(dir);
    return true;
}

static void close_between(unsigned first, unsigned last)
{
    if (first > last || close_range(first, last, 0) == 0)
        return;
    /* An old kernel or seccomp profile has no close_range, and container runtimes set limits on
     * open files that would take minutes to count to. */
    if (close_listed(first, last))
        return;
    struct rlimit limit = {.rlim_cur = 65536};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; fd++)
        close((int)fd);
}

/* Leaves 0, 1, 2 and the given descriptors. */
void close_all_but(const int *keep, size_t count)
{
    int sorted[8];
    unsigned next = 3;
    if (count > sizeof sorted / sizeof *sorted)
        abort();
    for (size_t i = 0; i < count; i++)
        sorted[i] = keep[i];
    qsort(sorted, count, sizeof *sorted, by_value);
    for (size_t i = 0; i < count; i++) {
        if (sorted[i] < 3)
            continue;
        if ((unsigned)sorted[i] > next)
            close_between(next, (unsigned)sorted[i] - 1);
        next = (unsigned)sorted[i] + 1;
    }
    close_between(next, ~0u);
}

void stdio_to_null(void)
{
    int null = open("/dev/null", O_RDWR);
    if (null < 0)
        die(1, "cannot open /dev/null: %s; the session needs a usual /dev", strerror(errno));
    for (int fd = 0; fd < 3; fd++)
        if (null != fd)
            dup2(null, fd);
    if (null > 2)
        close(null);
}

bool read_size(const char *text, unsigned short *columns, unsigned short *rows)
{
    unsigned c, r;
    char rest;
    if (strspn(text, "0123456789x") != strlen(text) ||
        sscanf(text, "%5ux%5u%c", &c, &r, &rest) != 2 || !c || !r || c > 65535 || r > 65535)
        return false;
    *columns = (unsigned short)c;
    *rows = (unsigned short)r;
    return true;
}

void signals_to_default(void)
{
    /* Not sigaction(): the C library refuses its own two signals, which posix_spawn() ignores and
     * hands down. All zero is the kernel's struct for the default, whatever its layout. */
    static const unsigned long normal[8];
    for (int s = 1; s < NSIG; s++)
        syscall(SYS_rt_sigaction, s, normal, NULL, 8);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}
