#include "graph.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>

/* A packet is one process. Each part may fill it up to its own limit, so a process with a
 * thousand long-named files still shows its listeners and its threads. */
#define COMMAND_BYTES 4096          /* of argv, before escaping */
#define PATH_BYTES 1024
#define FDS_MAX 256
#define FDS_LIMIT (46 * 1024)
#define LISTENING_LIMIT (50 * 1024)
#define THREADS_LIMIT (JSON_ROOM - 64)
#define LISTENING_MAX 32
/* A tree larger than this is cut, and the last packet says so. */
#define PROCESSES_MAX 4096

struct graph_job {
    struct tree tree;
    size_t next, sent;
    bool truncated;
    const struct started *started;
    pid_t foreground;
    char users[64];                 /* the keeper's user namespace; "" if it cannot be seen */
    struct listeners listeners;
};

/* Of a process, as in "user:[4026531837]"; "" if the kernel hides it from us. */
static void read_users(pid_t pid, char *users, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    ssize_t length = readlink(path, users, room - 1);
    users[length < 0 ? 0 : length] = '\0';
}

struct graph_job *graph_new(const struct started *s, bool foreground_only, bool everyone)
{
    struct graph_job *job = must_realloc(NULL, sizeof *job);
    *job = (struct graph_job){.started = s, .foreground = tcgetpgrp(s->master)};
    read_users(s->keeper, job->users, sizeof job->users);
    (everyone ? tree_scan_all : tree_scan)(&job->tree, getpid());
    size_t kept = 0;
    for (size_t i = 0; i < job->tree.count; i++)
        if (!foreground_only || job->tree.list[i].pgid == job->foreground)
            job->tree.list[kept++] = job->tree.list[i];
    job->truncated = kept > PROCESSES_MAX;
    job->tree.count = job->truncated ? PROCESSES_MAX : kept;
    return job;
}

void graph_free(struct graph_job *job)
{
    tree_free(&job->tree);
    listeners_free(&job->listeners);
    free(job);
}

static void write_command(struct json *j, pid_t pid)
{
    char path[64], text[COMMAND_BYTES + 1];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    ssize_t length = proc_read(path, text, sizeof text);
    json_key(j, "command");
    json_raw(j, "[");
    for (ssize_t at = 0; at < length;) {
        size_t word = strnlen(text + at, (size_t)(length - at));
        json_comma(j);
        json_string(j, text + at, word);
        at += (ssize_t)word + 1;
    }
    json_raw(j, "]");
}

static void write_link(struct json *j, const char *key, pid_t pid, const char *name)
{
    char path[64], target[PATH_BYTES];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    ssize_t length = readlink(path, target, sizeof target);
    json_key(j, key);
    json_string(j, target, length < 0 ? 0 : (size_t)length);
}

/* What keeps a process from being dumped and its descriptors do not show. Only what is so is said. */
static void write_status(const struct graph_job *job, struct json *j, pid_t pid)
{
    char path[64], text[4096], users[64];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    bool known = proc_read(path, text, sizeof text) > 0;
    char *uid = known ? strstr(text, "\nUid:") : NULL;
    char *tracer = known ? strstr(text, "\nTracerPid:") : NULL;
    json_pair_number(j, "uid", uid ? strtol(uid + strlen("\nUid:"), NULL, 10) : -1);
    long by = tracer ? strtol(tracer + strlen("\nTracerPid:"), NULL, 10) : 0;
    if (by > 0)
        json_pair_number(j, "tracer", by);
    read_users(pid, users, sizeof users);
    if (*users && *job->users && strcmp(users, job->users) != 0)
        json_pair_bool(j, "own_users", true);
}

static void write_listener(struct json *j, const struct listener *l)
{
    json_comma(j);
    json_raw(j, "{");
    json_pair_string(j, "protocol", l->unix_domain ? "unix" : "tcp");
    json_pair_string(j, l->unix_domain ? "path" : "address", l->address);
    if (!l->unix_domain)
        json_pair_number(j, "port", l->port);
    json_raw(j, "}");
}

struct found {
    const struct listener *list[LISTENING_MAX];
    size_t count;
};

static void note_listener(const struct listeners *all, const char *target, struct found *found)
{
    unsigned long inode;
    if (found->count == LISTENING_MAX || sscanf(target, "socket:[%lu]", &inode) != 1)
        return;
    const struct listener *l = listeners_find(all, inode);
    for (size_t i = 0; i < found->count && l; i++)
        if (found->list[i] == l)
            return;
    if (l)
        found->list[found->count++] = l;
}

/* Which device it is, whatever it is called. The kernel must not ask a file server for that: one
 * that does not answer would hold up the loop. */
static void write_device(struct json *j, const char *link)
{
    struct statx s;
    char text[48];
    if (statx(AT_FDCWD, link, AT_STATX_DONT_SYNC, STATX_TYPE, &s) < 0)
        return;
    if (!S_ISCHR(s.stx_mode) && !S_ISBLK(s.stx_mode))
        return;
    const char *kind = S_ISCHR(s.stx_mode) ? "char" : "block";
    snprintf(text, sizeof text, "%s %u:%u", kind, s.stx_rdev_major, s.stx_rdev_minor);
    json_pair_string(j, "device", text);
}

static void write_protocol(struct json *j, const char *link)
{
    char name[64];
    ssize_t length = getxattr(link, "system.sockprotoname", name, sizeof name);
    if (length > 0) {
        json_key(j, "protocol");
        json_string(j, name, strnlen(name, (size_t)length));
    }
}

static bool write_fd(struct json *j, int fd, const char *link, const char *target, size_t length)
{
    size_t mark = j->length;
    json_comma(j);
    json_raw(j, "{");
    json_pair_number(j, "fd", fd);
    json_key(j, "target");
    json_string(j, target, length);
    if (strncmp(target, "/dev/", 5) == 0)
        write_device(j, link);
    else if (strncmp(target, "socket:", 7) == 0)
        write_protocol(j, link);
    json_raw(j, "}");
    if (!j->overflow)
        return true;
    json_undo(j, mark);
    return false;
}

static void write_fds(struct json *j, pid_t pid, const struct listeners *all, struct found *found)
{
    char path[64], link[128], target[PATH_BYTES];
    long total = 0;
    bool room = true;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    json_key(j, "fds");
    json_raw(j, "[");
    j->limit = FDS_LIMIT;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        total++;
        snprintf(link, sizeof link, "%s/%.20s", path, e->d_name);
        /* Past a few thousand the cost would hold up the loop, and with it the fence. */
        ssize_t length = total > 4096 ? -1 : readlink(link, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        note_listener(all, target, found);
        if (room && total <= FDS_MAX)
            room = write_fd(j, atoi(e->d_name), link, target, (size_t)length);
    }
    if (dir)
        closedir(dir);
    j->limit = sizeof j->text;
    json_raw(j, "]");
    json_pair_number(j, "fds_total", total);
}

static void write_listening(struct json *j, const struct found *found)
{
    json_key(j, "listening");
    json_raw(j, "[");
    j->limit = LISTENING_LIMIT;
    for (size_t i = 0; i < found->count; i++) {
        size_t mark = j->length;
        write_listener(j, found->list[i]);
        if (j->overflow) {
            json_undo(j, mark);
            break;
        }
    }
    j->limit = sizeof j->text;
    json_raw(j, "]");
}

static void write_process(struct graph_job *job, const struct process *p, struct json *j)
{
    struct found found = {.count = 0};
    char letter[2] = {p->state, '\0'}, path[64], channel[64];
    json_start(j);
    json_raw(j, "{");
    json_pair_number(j, "pid", p->pid);
    json_pair_number(j, "ppid", p->ppid);
    json_pair_number(j, "pgid", p->pgid);
    json_pair_number(j, "sid", p->sid);
    json_pair_string(j, "state", letter);
    json_pair_string(j, "name", p->name);
    write_status(job, j, p->pid);
    json_pair_number(j, "started_ms", (long long)(p->started * 1000 / (unsigned)sysconf(_SC_CLK_TCK)));
    json_pair_number(j, "cpu_ms", (long long)(p->cpu * 1000 / (unsigned)sysconf(_SC_CLK_TCK)));
    write_command(j, p->pid);
    write_link(j, "exe", p->pid, "exe");
    write_link(j, "cwd", p->pid, "cwd");
    snprintf(path, sizeof path, "/proc/%d/wchan", p->pid);
    json_pair_string(j, "wait_channel", proc_read(path, channel, sizeof channel) > 0 ? channel : "");
    listeners_of(&job->listeners, p->pid);
    write_fds(j, p->pid, &job->listeners, &found);
    write_listening(j, &found);
    json_key(j, "threads");
    json_raw(j, "[");
    j->limit = THREADS_LIMIT;
    if (p->pgid == job->foreground)
        waits_write(j, p->pid);
    j->limit = sizeof j->text;
    json_raw(j, "]}");
}

/* Termios of the terminal is read last, after the threads: what was seen waiting still waits or
 * has been answered, and an answer shows as a running thread the next time. */
static void write_end(const struct graph_job *job, struct json *j)
{
    struct termios t = {0};
    bool known = tcgetattr(job->started->master, &t) == 0;
    json_start(j);
    json_raw(j, "{");
    json_pair_bool(j, "ok", true);
    json_pair_bool(j, "end", true);
    json_pair_number(j, "processes", (long long)job->sent);
    json_pair_number(j, "foreground_pgid", job->foreground > 0 ? job->foreground : 0);
    json_pair_bool(j, "echo", known && (t.c_lflag & ECHO));
    json_pair_bool(j, "canonical", known && (t.c_lflag & ICANON));
    json_pair_bool(j, "icrnl", known && (t.c_iflag & ICRNL));
    json_pair_number(j, "command_pid", job->started->command);
    json_pair_string(j, "tty", job->started->tty);
    json_pair_bool(j, "truncated", job->truncated);
    json_raw(j, "}");
}

bool graph_next(struct graph_job *job, struct json *packet)
{
    while (job->next < job->tree.count) {
        /* Read again: it may have ended, or moved to another group, since the tree was read. */
        struct process *old = &job->tree.list[job->next++], p;
        if (!process_read(old->pid, &p) || p.started != old->started)
            continue;
        write_process(job, &p, packet);
        job->sent++;
        return false;
    }
    write_end(job, packet);
    return true;
}
