/* The session's process tree, read from /proc: every descendant of hold, hold itself left out.
 * A process that entered the container by other ways (kubectl exec, a probe, the node agent) is
 * nobody's descendant and so no part of the session: it is neither frozen nor ended. */
#ifndef HOLD_TREE_H
#define HOLD_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process {
    pid_t pid, ppid, pgid, sid;
    char state;                     /* the leader's: R S D T t Z X I */
    int threads;
    int depth;                      /* 1: child of the root */
    unsigned long long started;     /* ticks since boot; with the pid it names a process for good */
    unsigned long long cpu;         /* ticks it has computed, in user and kernel mode */
    char name[64];
};

struct tree {
    struct process *list;           /* parents before children */
    size_t count, room;
    struct process *all;            /* scratch: what /proc showed, sorted by parent */
    size_t all_count, all_room;
};

void tree_scan(struct tree *t, pid_t root);
void tree_also(pid_t top);          /* every scan has this one and what is below it too; 0: none */
void tree_free(struct tree *t);

bool process_read(pid_t pid, struct process *p);
bool process_parse(char *stat, struct process *p);  /* the text of a stat file; leaves pid alone */

/* State of all threads together: 'X' gone, 'Z' only dead threads left, 'T' every live thread is
 * stopped, 'D' none runs but some are stuck in the kernel, else 'R'. */
char process_state(pid_t pid);

/* Who traces it, as seen from here; 0 if nobody. */
pid_t process_tracer(pid_t pid);
bool process_descends(pid_t pid, pid_t root, bool *known);

/* Reads a whole small file under /proc, NUL-terminated; returns the length or -1. */
ssize_t proc_read(const char *path, char *buffer, size_t room);

#endif
