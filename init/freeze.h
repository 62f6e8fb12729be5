/* Stopping and continuing everything by signal, without job control noticing. */
#ifndef HOLD_FREEZE_H
#define HOLD_FREEZE_H

#include <stdbool.h>
#include <sys/types.h>

#include "hold.h"

struct freeze_result {
    int stopped;                    /* not running now, whoever stopped them */
    int refused;                    /* the kernel does not let hold signal them (another user's) */
    int running;                    /* neither */
    struct unstopped unstopped;     /* the last two, and those that are stuck in the kernel */
    long milliseconds;
};

void freeze_tree(pid_t root, struct freeze_result *result);
/* One look at what is frozen. Whoever runs is stopped; true: somebody did, so freeze again. */
bool freeze_look(pid_t root, struct freeze_result *result);
/* One that was stopped is to be left alone from now on (tree_spare). */
void freeze_release(pid_t pid);
void thaw_tree(pid_t root);
void freeze_forget(void);           /* the tree is being ended: nothing will be thawed */

/* For an orderly end. The keeper is spared by both: its end must carry the command's status. */
void hang_up_tree(pid_t root, pid_t keeper);
int kill_tree(pid_t root, pid_t keeper);     /* everything; how many live processes it met */

#endif
