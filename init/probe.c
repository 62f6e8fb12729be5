/* --probe, --probe-ready: what kubelet executes beside a sidecar, which listens on no port. The
 * sidecar says one word to whoever connects to a socket of its own: "alive", or "ready". */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "hold.h"

/* Less than kubelet's own patience, so that the reason is ours. */
#define PROBE_SECONDS 4

static int reach(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval most = {.tv_sec = PROBE_SECONDS};
    if (strlen(path) >= sizeof at.sun_path)
        die(1, "%s is too long for a socket; give a shorter path", path);
    strcpy(at.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) < 0 ||
        connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        die(1, "nobody answers at %s: %s", path, strerror(errno));
    return fd;
}

void probe(const char *path, bool ready)
{
    char word[16] = "";
    int fd = reach(path);
    ssize_t got = read(fd, word, sizeof word - 1);
    if (got <= 0)
        die(1, "no answer at %s: %s", path, got < 0 ? strerror(errno) : "closed");
    word[strcspn(word, "\n")] = '\0';
    if (strcmp(word, "ready") != 0 && (ready || strcmp(word, "alive") != 0))
        die(1, "not ready");
    close(fd);
}
