/* The processes that hold guards, read from /proc; hold itself is left out.
 *
 * Two scans. `tree_scan` has the session: every descendant of hold. `tree_scan_all` has everything
 * that a freeze must stop. Where hold is PID 1 that is its whole PID namespace: also what entered
 * from outside (kubectl exec, a hook, nsenter), whose parent is not to be seen from here, and what
 * is in PID namespaces below. Elsewhere it is the session. */
#ifndef HOLD_TREE_H
#define HOLD_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process {
    pid_t pid, ppid, pgid, sid;
    char state;                     /* the leader's: R S D T t Z X I */
    int threads;
    int depth;                      /* 1: child of the root, or entered from outside */
    bool reached;                   /* scratch of a scan */
    bool spared;                    /* likewise */
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
void tree_scan_all(struct tree *t, pid_t root);
void tree_also(pid_t top);          /* every scan has this one and what is below it too; 0: none */
void tree_free(struct tree *t);

/* Scans of everything leave this one out, and what is below it, but for what was given to
 * tree_also(): the node agent's checkpoint tool, which must be able to finish in a frozen session.
 * False: there is no such process that entered from outside, or there are too many. */
bool tree_spare(pid_t pid);
void tree_unspare(pid_t pid);

/* The highest number that a process of this namespace was given last; it changes with each new
 * one. A hint that costs one read: /proc/loadavg may be another's. */
pid_t newest_pid(void);

bool process_read(pid_t pid, struct process *p);
bool process_parse(char *stat, struct process *p);  /* the text of a stat file; leaves pid alone */

/* State of all threads together: 'X' gone, 'Z' only dead threads left, 'T' every live thread is
 * stopped, 'D' none runs but some are stuck in the kernel, 'S' none runs but some sleep, else 'R'. */
char process_state(pid_t pid);

/* A SIGSTOP was sent to it and not taken yet. It takes it before its next instruction. */
bool process_stop_pending(pid_t pid);

/* Who traces it, as seen from here; 0 if nobody. */
pid_t process_tracer(pid_t pid);
bool process_descends(pid_t pid, pid_t root, bool *known);

/* Reads a whole small file under /proc, NUL-terminated; returns the length or -1. */
ssize_t proc_read(const char *path, char *buffer, size_t room);

#endif
