#include "tree.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hold.h"

ssize_t proc_read(const char *path, char *buffer, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    size_t length = 0;
    ssize_t n = 0;
    while (length < room - 1 && (n = read(fd, buffer + length, room - 1 - length)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        length += (size_t)n;
    }
    close(fd);
    buffer[length] = '\0';
    return n < 0 ? -1 : (ssize_t)length;
}

/* The name may hold spaces and parentheses, so the fields start after the last ')'. */
bool process_parse(char *text, struct process *p)
{
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!open || !close || close < open)
        return false;
    size_t length = (size_t)(close - open - 1);
    if (length >= sizeof p->name)
        length = sizeof p->name - 1;
    memcpy(p->name, open + 1, length);
    p->name[length] = '\0';
    int threads;
    unsigned long long kernel = 0;
    int fields = sscanf(close + 1,
                        " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %d %*d %llu",
                        &p->state, &p->ppid, &p->pgid, &p->sid, &p->cpu, &kernel, &threads, &p->started);
    p->cpu += kernel;
    p->threads = threads;
    p->depth = 0;
    p->reached = p->spared = false;
    return fields == 8;
}

bool process_read(pid_t pid, struct process *p)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (proc_read(path, text, sizeof text) <= 0)
        return false;
    p->pid = pid;
    return process_parse(text, p);
}

static char thread_state(pid_t pid, const char *tid)
{
    char path[96], text[1024];
    struct process p;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", pid, tid);
    if (proc_read(path, text, sizeof text) <= 0 || !process_parse(text, &p))
        return 'X';
    return p.state;
}

static char worse(char a, char b)
{
    static const char order[] = "XZTDSR";
    return strchr(order, a) > strchr(order, b) ? a : b;
}

static char simple_state(char state)
{
    switch (state) {
    case 'X': case 'x': return 'X';
    case 'Z': return 'Z';
    case 'T': case 't': return 'T';
    case 'D': return 'D';
    case 'S': case 'I': return 'S';
    default: return 'R';
    }
}

/* A leader may be a zombie, or stopped already, while another thread of it still runs. */
char process_state(pid_t pid)
{
    struct process p;
    if (!process_read(pid, &p))
        return 'X';
    if (p.threads <= 1 && p.state != 'Z')
        return simple_state(p.state);
    char path[64], state = simple_state(p.state);
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *dir = opendir(path);
    if (!dir)
        return state;
    for (struct dirent *e; (e = readdir(dir));)
        if (isdigit((unsigned char)e->d_name[0]))
            state = worse(state, simple_state(thread_state(pid, e->d_name)));
    closedir(dir);
    return state;
}

static unsigned long long status_number(pid_t pid, const char *key, int base)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (proc_read(path, text, sizeof text) <= 0)
        return 0;
    char *line = strstr(text, key);
    return line ? strtoull(line + strlen(key), NULL, base) : 0;
}

pid_t process_tracer(pid_t pid)
{
    return (pid_t)status_number(pid, "\nTracerPid:", 10);
}

bool process_stop_pending(pid_t pid)
{
    const unsigned long long stop = 1ull << (SIGSTOP - 1);
    return ((status_number(pid, "\nSigPnd:", 16) | status_number(pid, "\nShdPnd:", 16)) & stop) != 0;
}

pid_t newest_pid(void)
{
    char text[256];
    if (proc_read("/proc/loadavg", text, sizeof text) <= 0)
        return 0;
    char *last = strrchr(text, ' ');
    return last ? (pid_t)atoi(last) : 0;
}

bool process_descends(pid_t pid, pid_t root, bool *known)
{
    struct process p;
    *known = true;
    /* A real chain is short; the bound only guards against a /proc that changes under us. */
    for (int steps = 0; steps < 100000; steps++) {
        if (pid == root)
            return true;
        if (pid <= 1)
            return false;
        if (!process_read(pid, &p))
            break;
        pid = p.ppid;
    }
    *known = false;
    return false;
}

static int by_parent(const void *a, const void *b)
{
    const struct process *x = a, *y = b;
    if (x->ppid != y->ppid)
        return x->ppid < y->ppid ? -1 : 1;
    return x->pid < y->pid ? -1 : x->pid > y->pid;
}

static struct process *room_for_one(struct process **list, size_t count, size_t *room)
{
    if (count == *room) {
        *room = *room ? *room * 2 : 256;
        *list = must_realloc(*list, *room * sizeof **list);
    }
    return &(*list)[count];
}

static void read_all(struct tree *t)
{
    DIR *dir = opendir("/proc");
    if (!dir)
        die(1, "cannot read /proc: %s; mount it", strerror(errno));
    t->all_count = 0;
    for (struct dirent *e; (e = readdir(dir));)
        if (isdigit((unsigned char)e->d_name[0]) &&
            process_read((pid_t)atoi(e->d_name), room_for_one(&t->all, t->all_count, &t->all_room)))
            t->all_count++;
    closedir(dir);
    if (t->all_count)
        qsort(t->all, t->all_count, sizeof *t->all, by_parent);
}

static pid_t also;

/* A connection may spare one process, and there are eight connections. */
#define SPARED_MAX 8
static struct { pid_t pid; unsigned long long started; } spared[SPARED_MAX];

static bool is_spared(const struct process *p)
{
    for (size_t i = 0; i < SPARED_MAX; i++)
        if (spared[i].pid == p->pid && spared[i].started == p->started)
            return true;
    return false;
}

bool tree_spare(pid_t pid)
{
    struct process p;
    if (!process_read(pid, &p) || p.ppid != 0)
        return false;
    for (size_t i = 0; i < SPARED_MAX; i++) {
        if (spared[i].pid != 0)
            continue;
        spared[i].pid = pid;
        spared[i].started = p.started;
        return true;
    }
    return false;
}

void tree_unspare(pid_t pid)
{
    for (size_t i = 0; i < SPARED_MAX; i++)
        if (spared[i].pid == pid)
            spared[i].pid = 0;
}

void tree_also(pid_t top)
{
    also = top;
}

static void add_one(struct tree *t, struct process *found, int depth, bool below_spared)
{
    struct process *p = room_for_one(&t->list, t->count, &t->room);
    found->reached = true;
    *p = *found;
    p->depth = depth;
    p->spared = (below_spared && p->pid != also) || is_spared(p);
    t->count++;
}

static void add_children(struct tree *t, pid_t parent, int depth, bool below_spared)
{
    size_t low = 0, high = t->all_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->all[middle].ppid < parent)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < t->all_count && t->all[low].ppid == parent; low++)
        if (t->all[low].pid != getpid())
            add_one(t, &t->all[low], depth, below_spared);
}

static void add_below(struct tree *t, size_t from)
{
    for (size_t i = from; i < t->count; i++)
        add_children(t, t->list[i].pid, t->list[i].depth + 1, t->list[i].spared);
}

static bool add_also(struct tree *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].pid == also)
            return false;
    for (size_t i = 0; i < t->all_count; i++) {
        if (t->all[i].pid != also)
            continue;
        add_one(t, &t->all[i], 1, false);
        return true;
    }
    return false;
}

/* Breadth first from the root, so parents come before children. Each process has one parent and
 * is reached at most once: a pid reused in mid-scan cannot make this loop. */
void tree_scan(struct tree *t, pid_t root)
{
    read_all(t);
    t->count = 0;
    add_children(t, root, 1, false);
    add_below(t, 0);
    if (also && add_also(t))
        add_below(t, t->count - 1);
}

static void drop_spared(struct tree *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->count; i++)
        if (!t->list[i].spared)
            t->list[kept++] = t->list[i];
    t->count = kept;
}

/* A process whose parent ended while /proc was read is reached from nowhere, and comes last. */
void tree_scan_all(struct tree *t, pid_t root)
{
    if (root != 1) {
        tree_scan(t, root);
        return;
    }
    read_all(t);
    t->count = 0;
    add_children(t, 0, 1, false);
    add_children(t, root, 1, false);
    add_below(t, 0);
    for (size_t i = 0; i < t->all_count; i++)
        if (!t->all[i].reached && t->all[i].pid != root)
            add_one(t, &t->all[i], 1, false);
    drop_spared(t);
}

void tree_free(struct tree *t)
{
    free(t->list);
    free(t->all);
    *t = (struct tree){0};
}
