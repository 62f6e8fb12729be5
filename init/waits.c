/* What the threads of a process wait for, from the system call each is blocked in.
 *
 * A thread that hold may not look into (a setuid program) has "syscall": null and state S. */
#include <ctype.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "graph.h"

/* Enough to find a terminal among what an event loop watches; more would only fill the packet. */
#define WAITS_MAX 64
#define THREADS_MAX 64
#define FD_BITS_MAX 4096

struct call {
    long number;
    unsigned long arg[6];
    char channel[64];               /* where in the kernel it sleeps */
};

struct waits {
    int fds[WAITS_MAX];
    size_t count;
};

enum shape { OTHER, READ, READ_COUNTED, READ_SECOND, SELECT, POLL, EPOLL };

static enum shape shape_of(const struct call *c)
{
    switch (c->number) {
    case SYS_read: case SYS_pread64: case SYS_recvfrom:
        return READ_COUNTED;
    case SYS_readv: case SYS_preadv: case SYS_recvmsg: case SYS_recvmmsg: case SYS_splice:
    case SYS_tee: case SYS_copy_file_range:
        return READ;
    case SYS_sendfile:
        return READ_SECOND;
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6:
        return SELECT;
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll:
        return POLL;
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
#ifdef SYS_epoll_pwait2
    case SYS_epoll_pwait2:
#endif
    case SYS_epoll_pwait:
        return EPOLL;
    case SYS_restart_syscall:
        /* poll() after a freeze and a thaw: the registers still hold its arguments. */
        return strstr(c->channel, "poll") ? POLL : OTHER;
    default:
        return OTHER;
    }
}

static bool read_call(pid_t pid, pid_t tid, struct call *c)
{
    char path[96], text[256];
    c->channel[0] = '\0';
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, tid);
    if (proc_read(path, text, sizeof text) <= 0)
        return false;
    int fields = sscanf(text, "%ld %lx %lx %lx %lx %lx %lx", &c->number, &c->arg[0], &c->arg[1],
                        &c->arg[2], &c->arg[3], &c->arg[4], &c->arg[5]);
    if (fields != 7)                /* "running", or blocked outside any call */
        c->number = -1;
    snprintf(path, sizeof path, "/proc/%d/task/%d/wchan", pid, tid);
    if (proc_read(path, c->channel, sizeof c->channel) < 0)
        c->channel[0] = '\0';
    return true;
}

static void add_wait(struct waits *w, int fd)
{
    if (w->count < WAITS_MAX)
        w->fds[w->count++] = fd;
}

static ssize_t peek(pid_t pid, unsigned long from, void *to, size_t length)
{
    struct iovec here = {.iov_base = to, .iov_len = length};
    struct iovec there = {.iov_base = (void *)from, .iov_len = length};
    return process_vm_readv(pid, &here, 1, &there, 1, 0);
}

static void select_waits(pid_t pid, const struct call *c, struct waits *w)
{
    unsigned char bits[FD_BITS_MAX / 8] = {0};
    unsigned long limit = c->arg[0] < FD_BITS_MAX ? c->arg[0] : FD_BITS_MAX;
    /* Whole words, as the kernel reads them; only the set to read from matters. */
    size_t bytes = (limit + 63) / 64 * 8;
    if (c->arg[1] == 0 || peek(pid, c->arg[1], bits, bytes) != (ssize_t)bytes)
        return;
    for (unsigned long fd = 0; fd < limit; fd++)
        if (bits[fd / 8] & (1u << (fd % 8)))
            add_wait(w, (int)fd);
}

static void poll_waits(pid_t pid, const struct call *c, struct waits *w)
{
    struct pollfd set[256];
    unsigned long count = c->arg[1] < 256 ? c->arg[1] : 256;
    ssize_t n = peek(pid, c->arg[0], set, count * sizeof *set);
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof *set; i++)
        if (set[i].fd >= 0 && (set[i].events & (POLLIN | POLLRDNORM)))
            add_wait(w, set[i].fd);
}

static void epoll_waits(pid_t pid, const struct call *c, struct waits *w)
{
    char path[96], line[256];
    int fd;
    unsigned events;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", pid, (int)c->arg[0]);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "tfd: %d events: %x", &fd, &events) == 2 &&
            (events & (EPOLLIN | EPOLLRDNORM)))
            add_wait(w, fd);
    if (f)
        fclose(f);
}

static void find_waits(pid_t pid, const struct call *c, enum shape shape, struct waits *w)
{
    switch (shape) {
    case READ: case READ_COUNTED: add_wait(w, (int)c->arg[0]); break;
    case READ_SECOND: add_wait(w, (int)c->arg[1]); break;
    case SELECT: select_waits(pid, c, w); break;
    case POLL: poll_waits(pid, c, w); break;
    case EPOLL: epoll_waits(pid, c, w); break;
    case OTHER: break;
    }
}

static void write_thread(struct json *j, pid_t pid, pid_t tid, char state)
{
    struct call call = {.number = -1};
    struct waits waits = {.count = 0};
    enum shape shape = OTHER;
    char letter[2] = {state, '\0'};
    bool seen = read_call(pid, tid, &call) && call.number >= 0;
    if (seen && state == 'S') {
        shape = shape_of(&call);
        find_waits(pid, &call, shape, &waits);
    }
    json_comma(j);
    json_raw(j, "{");
    json_pair_number(j, "tid", tid);
    json_pair_string(j, "state", letter);
    if (seen)
        json_pair_number(j, "syscall", call.number);
    else
        json_pair_null(j, "syscall");
    if (shape == READ || shape == READ_COUNTED || shape == READ_SECOND)
        json_pair_number(j, "fd", waits.fds[0]);
    else
        json_pair_null(j, "fd");
    json_key(j, "waits_on");
    json_raw(j, "[");
    for (size_t i = 0; i < waits.count; i++) {
        json_comma(j);
        json_number(j, waits.fds[i]);
    }
    json_raw(j, "]");
    if (shape == READ_COUNTED)
        json_pair_number(j, "count", (long long)(call.arg[2] & INT64_MAX));
    else
        json_pair_null(j, "count");
    json_raw(j, "}");
}

void waits_write(struct json *j, pid_t pid)
{
    char path[64];
    int written = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && written < THREADS_MAX && (e = readdir(dir));) {
        struct process thread;
        char stat[96], text[1024], state = 'X';
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        pid_t tid = (pid_t)atoi(e->d_name);
        snprintf(stat, sizeof stat, "/proc/%d/task/%d/stat", pid, tid);
        if (proc_read(stat, text, sizeof text) > 0 && process_parse(text, &thread))
            state = thread.state;
        size_t mark = j->length;
        write_thread(j, pid, tid, state);
        if (j->overflow) {
            json_undo(j, mark);
            break;
        }
        written++;
    }
    if (dir)
        closedir(dir);
}
