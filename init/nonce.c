/* Random bits in hex. In a pod the sidecar makes them and hands them over by a FIFO in a volume that
 * the session's container cannot write. A pipe gives what is written to one reader alone, and hold
 * goes on only if that was hold: as PID 1 it then takes whoever was faster along.
 *
 * The keeper is a fork of hold which the session can look into, so it forgets
 * them, and packets that name them are wiped as they are freed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hold.h"

static char text[NONCE_MAX + 1];

void nonce_make(void)
{
    unsigned char raw[8];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        die(1, "cannot get random bytes: %s; this needs a Linux kernel", strerror(errno));
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(text + 2 * i, 3, "%02x", raw[i]);
    explicit_bzero(raw, sizeof raw);
}

void nonce_make_fifo(const char *path)
{
    if (mkfifo(path, 0644) < 0 && errno != EEXIST)
        die(1, "cannot make %s: %s; its directory must exist and be writable", path,
            strerror(errno));
    if (chmod(path, 0644) < 0)      /* whatever the umask is: the session may run as any user */
        die(1, "cannot make %s readable: %s", path, strerror(errno));
}

int nonce_open(const char *path)
{
    struct stat found;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) < 0 || !S_ISFIFO(found.st_mode))
        die(1, "the sidecar's FIFO is not at %s: it was not made, or another has used it; start the "
               "session again", path);
    return fd;
}

bool nonce_read(int fd)
{
    char got[NONCE_MAX + 2] = {0};  /* ends with a NUL whatever came */
    ssize_t n = read(fd, got, sizeof got - 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    size_t length = n > 0 ? strspn(got, "0123456789abcdef") : 0;
    if (length < 16 || length > NONCE_MAX || (size_t)n != length + 1 || got[length] != '\n')
        die(1, "the sidecar's nonce went to another process, or is damaged; start the session again");
    memcpy(text, got, length);
    text[length] = '\0';
    explicit_bzero(got, sizeof got);
    return true;
}

const char *nonce_text(void)
{
    return text;
}

/* What calls that have returned left on the stack: copying a packet takes it through vector
 * registers, which the dynamic linker and signal frames put there as they are. */
static __attribute__((noinline, no_sanitize("address"))) void wipe_dead_stack(void)
{
    char room[64 << 10];
    explicit_bzero(room, sizeof room);
}

void nonce_forget(void)
{
    explicit_bzero(text, sizeof text);
    wipe_dead_stack();
}
