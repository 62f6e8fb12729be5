/* Order is everything here. A shell that sees its foreground job stop takes the terminal back and
 * prints "Stopped"; so a parent must be stopped, and seen to be, before its children are, and on
 * the way back each child must be seen to run before its parent is continued.
 *
 * A stopped process can neither fork nor continue another. So when two passes in a row find
 * nothing to do, nothing ran in between that could have undone them. */
#include "freeze.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hold.h"
#include "tree.h"

#define MS 1000000ull

/* All of it: the lease allows two seconds (F). What is met later is for the guard's next look. */
#define FREEZE_BOUND_NS (1800 * MS)
/* Processes that continue each other can outlast passes that stop one after the other. After so
 * many passes all are sent their stops in bursts first. */
#define PASSES_BEFORE_BURSTS 3
#define BURSTS_NS (10 * MS)
/* One level. A runnable process stops as soon as it is scheduled; this is a very busy machine. */
#define LEVEL_BOUND_NS (200 * MS)
/* A parent in vfork() is stuck in the kernel until its child, one level below, has gone on: do
 * not wait for it. It stops before its next instruction in any case. */
#define STUCK_BOUND_NS (5 * MS)

struct mark {
    pid_t pid;
    unsigned long long started;
    enum { OURS, THEIRS, REFUSED } who;   /* THEIRS was stopped before us and stays so after us */
};

static struct mark *marks;                /* sorted by pid */
static size_t mark_count, mark_room;

static size_t mark_place(pid_t pid)
{
    size_t low = 0, high = mark_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (marks[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct mark *mark_find(const struct process *p)
{
    size_t i = mark_place(p->pid);
    if (i < mark_count && marks[i].pid == p->pid && marks[i].started == p->started)
        return &marks[i];
    return NULL;
}

static void mark_set(const struct process *p, int who)
{
    size_t i = mark_place(p->pid);
    if (i == mark_count || marks[i].pid != p->pid) {
        if (mark_count == mark_room) {
            mark_room = mark_room ? mark_room * 2 : 64;
            marks = must_realloc(marks, mark_room * sizeof *marks);
        }
        memmove(marks + i + 1, marks + i, (mark_count - i) * sizeof *marks);
        mark_count++;
    }
    marks[i] = (struct mark){.pid = p->pid, .started = p->started, .who = who};
}

void freeze_forget(void)
{
    free(marks);
    marks = NULL;
    mark_count = mark_room = 0;
}

/* A process that an outsider traces (a checkpoint in progress) is in that tracer's hands: a stop
 * signal would only break the tracer's work. */
static bool traced_from_outside(const struct tree *t, pid_t pid)
{
    pid_t tracer = process_tracer(pid);
    if (tracer == 0)
        return false;
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].pid == tracer)
            return false;
    return true;
}

static void unstopped_add(struct unstopped *u, pid_t pid)
{
    if (u->count < UNSTOPPED_MAX)
        u->pids[u->count] = pid;
    u->count++;
}

/* A parent in vfork() is in state D until its child has gone on, and the cgroup freezer of old (v1)
 * puts tasks there. Neither does anything meanwhile, unlike one that waits for a disk. Where the
 * kernel does not say what it waits for, a child of its own tells of vfork(). */
static bool harmless_in_kernel(const struct tree *t, pid_t pid)
{
    char path[64], channel[64];
    snprintf(path, sizeof path, "/proc/%d/wchan", pid);
    if (proc_read(path, channel, sizeof channel) > 0 && strcmp(channel, "0") != 0)
        return strstr(channel, "fork") || strstr(channel, "clone") ||
               strstr(channel, "refrigerator");
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].ppid == pid)
            return true;
    return false;
}

/* Returns whether a signal was sent, that is, whether this pass found something to do. */
static bool stop_one(const struct tree *t, const struct process *p, struct freeze_result *r)
{
    struct mark *m = mark_find(p);
    char state = process_state(p->pid);
    if (state == 'X' || state == 'Z')
        return false;
    if (state == 'T') {
        if (!m)
            mark_set(p, THEIRS);
        r->stopped++;
        return false;
    }
    if (traced_from_outside(t, p->pid)) {
        r->stopped++;
        return false;
    }
    /* It sleeps and cannot wake: the node's agent has frozen it too, or the kernel has it. */
    if (m && m->who == OURS && state != 'R' && process_stop_pending(p->pid)) {
        if (state == 'D' && !harmless_in_kernel(t, p->pid))
            unstopped_add(&r->unstopped, p->pid);
        else
            r->stopped++;
        return false;
    }
    if (kill(p->pid, SIGSTOP) < 0) {
        if (errno == EPERM) {
            mark_set(p, REFUSED);
            r->refused++;
            unstopped_add(&r->unstopped, p->pid);
        }
        return false;
    }
    mark_set(p, OURS);
    r->running++;
    unstopped_add(&r->unstopped, p->pid);
    return true;
}

static void await_level(const struct tree *t, size_t first, size_t last, bool stopped)
{
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    for (size_t i = first; i < last; i++) {
        const struct mark *m = mark_find(&t->list[i]);
        if (!m || m->who != OURS)
            continue;
        for (;;) {
            char state = process_state(t->list[i].pid);
            uint64_t waited = clock_ns(CLOCK_MONOTONIC) - start;
            bool is_stopped = state == 'T' || state == 'Z' || state == 'X';
            if (stopped ? is_stopped : state != 'T')
                break;
            if (waited > LEVEL_BOUND_NS || (state == 'D' && waited > STUCK_BOUND_NS))
                break;
            pause_us(50);
        }
    }
}

static bool freeze_pass(struct tree *t, pid_t root, struct freeze_result *r)
{
    bool moved = false;
    r->stopped = r->refused = r->running = 0;
    r->unstopped.count = 0;
    tree_scan_all(t, root);
    for (size_t first = 0, last; first < t->count; first = last) {
        bool sent = false;
        for (last = first; last < t->count && t->list[last].depth == t->list[first].depth; last++)
            sent |= stop_one(t, &t->list[last], r);
        if (sent)
            await_level(t, first, last, true);
        moved |= sent;
    }
    return moved;
}

/* Nothing is read in between, so that there is no time to answer. A stop for one that is stopped
 * already waits, and goes when it is continued. */
static void send_bursts(const struct tree *t)
{
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    while (clock_ns(CLOCK_MONOTONIC) - start < BURSTS_NS)
        for (size_t i = 0; i < t->count; i++) {
            const struct mark *m = mark_find(&t->list[i]);
            if (m && m->who == OURS)
                kill(m->pid, SIGSTOP);
        }
}

void freeze_tree(pid_t root, struct freeze_result *result)
{
    struct tree t = {0};
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    int quiet = 0;
    for (int pass = 0; quiet < 2 && clock_ns(CLOCK_MONOTONIC) - start < FREEZE_BOUND_NS; pass++) {
        if (pass >= PASSES_BEFORE_BURSTS && quiet == 0)
            send_bursts(&t);
        quiet = freeze_pass(&t, root, result) ? 0 : quiet + 1;
    }
    result->milliseconds = (long)((clock_ns(CLOCK_MONOTONIC) - start) / MS);
    tree_free(&t);
}

bool freeze_look(pid_t root, struct freeze_result *result)
{
    struct tree t = {0};
    bool moved = freeze_pass(&t, root, result);
    tree_free(&t);
    return moved;
}

void freeze_release(pid_t pid)
{
    struct process p;
    struct mark *m = process_read(pid, &p) ? mark_find(&p) : NULL;
    if (!m || m->who != OURS)
        return;
    kill(pid, SIGCONT);
    m->who = THEIRS;
}

void thaw_tree(pid_t root)
{
    struct tree t = {0};
    tree_scan_all(&t, root);
    for (size_t last = t.count, first; last > 0; last = first) {
        for (first = last; first > 0 && t.list[first - 1].depth == t.list[last - 1].depth; first--) {
            const struct mark *m = mark_find(&t.list[first - 1]);
            if (m && m->who == OURS)
                kill(m->pid, SIGCONT);
        }
        await_level(&t, first, last, false);
    }
    tree_free(&t);
    freeze_forget();
}

/* HUP to all before CONT to any: a process that wakes must find the news already there. */
void hang_up_tree(pid_t root, pid_t keeper)
{
    struct tree t = {0};
    tree_scan(&t, root);
    for (size_t i = 0; i < t.count; i++)
        if (t.list[i].pid != keeper)
            kill(t.list[i].pid, SIGHUP);
    for (size_t i = 0; i < t.count; i++)
        kill(t.list[i].pid, SIGCONT);
    tree_free(&t);
}

int kill_tree(pid_t root, pid_t keeper)
{
    struct tree t = {0};
    int met = 0;
    tree_scan_all(&t, root);
    for (size_t i = 0; i < t.count; i++) {
        if (process_state(t.list[i].pid) == 'Z')
            continue;
        /* A process that hold may not signal cannot be waited for either. */
        if (kill(t.list[i].pid, t.list[i].pid == keeper ? SIGCONT : SIGKILL) == 0)
            met++;
    }
    tree_free(&t);
    return met;
}
