/* --install: hold copies itself to where another container finds it. That one may start at any
 * moment, so it must find all of the program or none of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hold.h"

/* 0, or errno. */
static int copy(int from, int to)
{
    static char block[64 * 1024];
    for (;;) {
        ssize_t got = read(from, block, sizeof block);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : 0;
        for (ssize_t done = 0, n; done < got; done += n) {
            n = write(to, block + done, (size_t)(got - done));
            if (n < 0 && errno != EINTR)
                return errno;
            if (n < 0)
                n = 0;
        }
    }
}

/* Whether the file holds this very program, as far as it has been read. */
static bool same(int from, const char *path)
{
    static char one[16 * 1024], other[sizeof one];
    int there = open(path, O_RDONLY | O_CLOEXEC);
    bool equal = there >= 0;
    for (ssize_t got = 1; equal && got > 0;) {
        got = read(from, one, sizeof one);
        equal = got >= 0 && read(there, other, sizeof other) == got &&
                memcmp(one, other, (size_t)got) == 0;
    }
    if (there >= 0)
        close(there);
    return equal;
}

void install(const char *path)
{
    char *fresh;
    if (asprintf(&fresh, "%s.new", path) < 0)
        die(1, "out of memory; give the session more");
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (from < 0)
        die(1, "cannot read this program: %s; /proc must be mounted", strerror(errno));
    /* A program that runs from the file needs that very file, should it be moved. */
    if (same(from, path)) {
        close(from);
        free(fresh);
        return;
    }
    if (lseek(from, 0, SEEK_SET) < 0)
        die(1, "cannot read this program: %s; /proc must be mounted", strerror(errno));
    unlink(fresh);                  /* left by one that was killed */
    int to = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (to < 0)
        die(1, "cannot make %s: %s; its directory must exist and be writable", fresh,
            strerror(errno));
    int why = copy(from, to);
    if (why == 0 && fchmod(to, 0555) < 0)
        why = errno;
    if (close(to) < 0 && why == 0)
        why = errno;
    if (why == 0 && rename(fresh, path) < 0)
        why = errno;
    close(from);
    if (why) {
        unlink(fresh);
        die(1, "cannot install to %s: %s; give the path of a file on a disk with room", path,
            strerror(why));
    }
    free(fresh);
}
