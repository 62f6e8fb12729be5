/* Stopping and continuing the whole tree by signal, without job control noticing. */
#ifndef HOLD_FREEZE_H
#define HOLD_FREEZE_H

#include <stdbool.h>
#include <sys/types.h>

struct freeze_result {
    int stopped;                    /* not running now, whoever stopped them */
    int refused;                    /* the kernel does not let hold signal them (setuid programs) */
    int running;                    /* neither: the freeze is incomplete */
    long milliseconds;
};

void freeze_tree(pid_t root, struct freeze_result *result);
void thaw_tree(pid_t root);
void freeze_forget(void);           /* the tree is being ended: nothing will be thawed */

/* For an orderly end. The keeper is spared by both: its end must carry the command's status. */
void hang_up_tree(pid_t root, pid_t keeper);
int kill_tree(pid_t root, pid_t keeper);     /* returns how many live processes it met */

#endif
