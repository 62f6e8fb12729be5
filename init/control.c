/* The control socket: a few connections, one packet per request, one packet per answer.
 *
 * Slow peers: each connection has one bounded queue. Answers and events are queued at once and
 * a peer that lets more than QUEUE_BYTES pile up, or takes nothing for STALL_NS, is dropped; it
 * can connect again. A process graph is made packet by packet as the peer takes it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "graph.h"
#include "hold.h"
#include "tree.h"

#define CONNECTIONS_MAX 8
#define QUEUE_BYTES (128 * 1024)
#define STALL_NS 10000000000ull
/* A turn's worth: a session that keeps connecting must not keep the loop from its deadline. */
#define ACCEPTS_MAX 16
#define LAST_WORDS_MS 1000

_Static_assert(CONTROL_POLL_MAX == CONNECTIONS_MAX + 1, "the listener is polled too");

struct packet {
    struct packet *next;
    int with_fd;                    /* -1, or a descriptor to pass along; not owned */
    size_t length;
    char text[];
};

struct connection {
    int fd;                         /* -1: free */
    bool doomed;                    /* to be closed once no one up the stack uses it */
    struct packet *first, **last;
    size_t queued;
    uint64_t progress_ns;           /* when the queue last moved */
    struct graph_job *graph;
    pid_t spares;                   /* left out of freezes for as long as this is open; 0: none */
};

static int listener = -1;
static char bound[sizeof((struct sockaddr_un *)0)->sun_path];
static struct connection connections[CONNECTIONS_MAX];

static bool answers(const struct sockaddr_un *at)
{
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool alive = connect(probe, (const struct sockaddr *)at, sizeof *at) == 0 || errno == EAGAIN;
    close(probe);
    return alive;
}

/* A socket file outlives a hold that was killed; one that nobody answers on may be replaced. */
static int bind_fresh(int fd, const struct sockaddr_un *at)
{
    struct stat there;
    int rc = bind(fd, (const struct sockaddr *)at, sizeof *at);
    if (rc == 0 || errno != EADDRINUSE)
        return rc;
    if (lstat(at->sun_path, &there) < 0 || !S_ISSOCK(there.st_mode) || answers(at)) {
        errno = EADDRINUSE;
        return -1;
    }
    unlink(at->sun_path);
    return bind(fd, (const struct sockaddr *)at, sizeof *at);
}

void control_listen(const char *path, bool shared)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path)
        die(1, "socket path is %zu bytes long, at most %zu are possible; use a shorter one: %s",
            strlen(path), sizeof at.sun_path - 1, path);
    memcpy(at.sun_path, path, strlen(path));
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        connections[i].fd = -1;
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        die(1, "cannot make a socket: %s; raise the limit on open files", strerror(errno));
    mode_t usual = umask(shared ? 0111 : 0177);
    int rc = bind_fresh(listener, &at);
    int why = errno;
    umask(usual);
    if (rc < 0 && why == EADDRINUSE)
        die(1, "%s is in use; end the session that listens there or choose another path", path);
    if (rc < 0)
        die(1, "cannot make socket %s: %s; its directory must exist and be writable", path,
            strerror(why));
    memcpy(bound, at.sun_path, sizeof bound);
    if (listen(listener, CONNECTIONS_MAX) < 0)
        die(1, "cannot listen on %s: %s; try another path", path, strerror(errno));
}

void control_unlink(void)
{
    if (bound[0])
        unlink(bound);
    bound[0] = '\0';
}

/* Wiped, as a status names the nonce: see nonce.c. */
static void packet_free(struct packet *p)
{
    explicit_bzero(p->text, p->length);
    free(p);
}

static void drop(struct connection *c)
{
    for (struct packet *p = c->first, *next; p; p = next) {
        next = p->next;
        packet_free(p);
    }
    if (c->graph)
        graph_free(c->graph);
    if (c->spares)
        tree_unspare(c->spares);
    close(c->fd);
    *c = (struct connection){.fd = -1};
}

/* 1: sent; 0: the peer is full; -1: the peer is gone. */
static int send_packet(int fd, const char *text, size_t length, int with_fd)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {.iov_base = (void *)text, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (with_fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &with_fd, sizeof(int));
    }
    if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 1;
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
}

static void flush(struct connection *c)
{
    while (c->first && !c->doomed) {
        struct packet *p = c->first;
        int sent = send_packet(c->fd, p->text, p->length, p->with_fd);
        if (sent < 0)
            c->doomed = true;
        if (sent <= 0)
            return;
        c->first = p->next;
        if (!c->first)
            c->last = &c->first;
        c->queued -= p->length;
        c->progress_ns = clock_ns(CLOCK_MONOTONIC);
        packet_free(p);
    }
}

void connection_send(struct connection *c, const char *text, size_t length, int with_fd)
{
    if (c->doomed)
        return;
    if (c->queued + length > QUEUE_BYTES) {
        c->doomed = true;
        return;
    }
    if (!c->first)
        c->progress_ns = clock_ns(CLOCK_MONOTONIC);
    struct packet *p = must_realloc(NULL, sizeof *p + length);
    p->next = NULL;
    p->with_fd = with_fd;
    p->length = length;
    memcpy(p->text, text, length);
    *c->last = p;
    c->last = &p->next;
    c->queued += length;
    flush(c);
}

void control_event(const char *json)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (connections[i].fd >= 0)
            connection_send(&connections[i], json, strlen(json), -1);
}

bool connection_spare(struct connection *c, pid_t pid)
{
    if (c->spares || !tree_spare(pid))
        return false;
    c->spares = pid;
    return true;
}

void connection_start_graph(struct connection *c, struct graph_job *job)
{
    c->graph = job;
}

/* A turn's worth of packets; the rest when the loop comes round, so others are served between. */
static void feed_graph(struct connection *c)
{
    static struct json packet;
    for (int i = 0; i < 32 && c->graph && !c->first && !c->doomed; i++) {
        bool last = graph_next(c->graph, &packet);
        connection_send(c, packet.text, packet.length, -1);
        if (last) {
            graph_free(c->graph);
            c->graph = NULL;
        }
    }
}

/* Only peers outside the session may steer it, whatever their uid. Inside a PID namespace that is
 * what pid 0 says: a process this namespace cannot see. The kernel keeps the pid of who connected,
 * also when it has gone since or the socket was passed on. Without a namespace, ancestry is asked
 * of /proc; a process already gone cannot be vouched for. */
static bool admissible(const struct session *s, int fd)
{
    struct ucred peer = {.pid = -1};
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return false;
    if (s->namespaced)
        return peer.pid == 0;
    bool known = false;
    bool inside = peer.pid > 0 && process_descends(peer.pid, getpid(), &known);
    return peer.pid == 0 || (known && !inside);
}

static void refuse(int fd, const char *text)
{
    send_packet(fd, text, strlen(text), -1);
    close(fd);
}

static void accept_peers(const struct session *s)
{
    for (int turns = 0; turns < ACCEPTS_MAX; turns++) {
        struct connection *c = NULL;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        for (int i = 0; i < CONNECTIONS_MAX && !c; i++)
            if (connections[i].fd < 0)
                c = &connections[i];
        if (!admissible(s, fd)) {
            refuse(fd, "{\"ok\":false,\"error\":\"refused\",\"message\":\"only processes outside "
                       "the session may steer it; connect from outside\"}");
        } else if (!c) {
            refuse(fd, "{\"ok\":false,\"error\":\"busy\",\"message\":\"all connections are taken; "
                       "close one and try again\"}");
        } else {
            *c = (struct connection){.fd = fd};
            c->last = &c->first;
        }
    }
}

static void close_passed(int *passed)
{
    if (*passed >= 0)
        close(*passed);
    *passed = PASSED_NONE;
}

/* As recv(), with what `passed` is in request_handle(). No descriptor stays that is not told of:
 * a peer must not be able to fill the table. */
static ssize_t receive(int fd, char *text, size_t room, int *passed)
{
    union {
        char room[CMSG_SPACE(2 * sizeof(int))];     /* one would be padded to two in any case */
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = text, .iov_len = room};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    *passed = PASSED_NONE;
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return n;
    bool many = message.msg_flags & MSG_CTRUNC;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= h->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            many |= *passed >= 0;
            close_passed(passed);
            memcpy(passed, CMSG_DATA(h) + at, sizeof(int));
        }
    }
    if (many) {
        close_passed(passed);
        *passed = PASSED_MANY;
    }
    return n;
}

/* Until a graph is all sent the next request stays unread, so answers keep their order. */
static void read_requests(struct session *s, struct connection *c, short events)
{
    char text[REQUEST_MAX + 2];
    int passed;
    for (int i = 0; i < 16 && !c->graph && !c->doomed; i++) {
        ssize_t n = receive(c->fd, text, REQUEST_MAX + 1, &passed);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            c->doomed |= errno != EAGAIN;
            return;
        }
        /* 0 is the end, or an empty packet: only poll() can tell. */
        if (n == 0 && (events & (POLLHUP | POLLRDHUP))) {
            close_passed(&passed);
            c->doomed = true;
            return;
        }
        request_handle(s, c, text, (size_t)n, &passed);
        close_passed(&passed);
        if (n == 0)
            return;
    }
}

size_t control_poll_set(struct pollfd *set)
{
    set[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *c = &connections[i];
        short events = POLLRDHUP;
        if (!c->graph)
            events |= POLLIN;
        if (c->graph || c->first)
            events |= POLLOUT;
        set[i + 1] = (struct pollfd){.fd = c->fd, .events = events};
    }
    return CONNECTIONS_MAX + 1;
}

void control_handle(struct session *s, const struct pollfd *set, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct connection *c = &connections[i - 1];
        short events = set[i].revents;
        if (c->fd < 0 || !events)
            continue;
        if (events & POLLOUT)
            flush(c);
        if (events & POLLOUT)
            feed_graph(c);
        if (events & (POLLIN | POLLHUP | POLLERR | POLLRDHUP))
            read_requests(s, c, events);
        if ((events & (POLLHUP | POLLERR | POLLRDHUP)) && c->graph)
            c->doomed = true;       /* nobody is left to read the rest of it */
    }
    if (set[0].revents)
        accept_peers(s);
}

bool control_busy(void)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (connections[i].fd >= 0 && connections[i].first && !connections[i].doomed)
            return true;
    return false;
}

void control_forget(void)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (connections[i].fd >= 0)
            drop(&connections[i]);
}

void control_flush(void)
{
    for (int waited = 0; control_busy() && waited < LAST_WORDS_MS; waited++) {
        pause_us(1000);
        for (int i = 0; i < CONNECTIONS_MAX; i++)
            if (connections[i].fd >= 0)
                flush(&connections[i]);
    }
}

void control_drop_stalled(void)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *c = &connections[i];
        if (c->fd >= 0 && c->first && now - c->progress_ns > STALL_NS)
            c->doomed = true;
        if (c->fd >= 0 && c->doomed)
            drop(c);
    }
}
