/* A session that someone else restored in hold's PID namespace: its keeper, its command, and the
 * terminal's master side, which came as a descriptor.
 *
 * At first the keeper is a child of the tool that restored it. When that goes, the kernel gives it
 * to hold, as PID 1, and its end is seen like that of a keeper hold started. Until then nothing
 * tells hold, so it looks. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hold.h"
#include "jobs.h"
#include "tree.h"

static pid_t keeper;
static unsigned long long keeper_began;     /* with the pid it names the process for good */

/* By the other side's file, not its number: there may be many /dev/pts. O_PATH opens no terminal,
 * so this does nothing to it, and goes by whatever an owner has done (TIOCEXCL). */
static const char *check_terminal(int master, const char *tty)
{
    struct stat named, real;
    int peer = ioctl(master, TIOCGPTPEER, O_PATH | O_CLOEXEC);
    if (peer < 0)
        return "the descriptor is not the master side of a terminal; pass the keeper's";
    bool known = fstat(peer, &real) == 0;
    close(peer);
    if (!known || stat(tty, &named) < 0 || named.st_dev != real.st_dev ||
        named.st_ino != real.st_ino)
        return "the descriptor's terminal is another one; pass the master side of the one named";
    return NULL;
}

const char *adopt(const struct adoption *a, struct started *s)
{
    struct process p;
    if (getpid() != 1)
        return "only as PID 1 hold learns how a session ends that it did not start";
    if (a->master == PASSED_NONE)
        return "no descriptor came; pass the terminal's master side along";
    if (a->master < 0)
        return "more than one descriptor came; pass the terminal's master side alone";
    if (strlen(a->tty) >= sizeof s->tty)
        return "the terminal's name is too long; pass one such as /dev/pts/0";
    const char *why = check_terminal(a->master, a->tty);
    if (why)
        return why;
    if (a->keeper == getpid() || !process_read(a->keeper, &p) || p.state == 'Z' || p.state == 'X')
        return "there is no such keeper; give its pid as hold sees it";
    if (fcntl(a->master, F_SETFL, O_NONBLOCK) < 0)
        return "the descriptor cannot be set not to block; pass the keeper's";
    keeper = a->keeper;
    keeper_began = p.started;
    s->keeper = a->keeper;
    s->command = a->command;
    s->master = a->master;
    s->jobs = jobs_find(a->keeper);
    memcpy(s->tty, a->tty, strlen(a->tty) + 1);
    return NULL;
}

/* Without a descriptor to read /proc with, nothing is known, and nothing has changed. */
enum adopted adopted_state(void)
{
    struct process p;
    if (kill(keeper, 0) < 0 && errno == ESRCH)
        return ADOPTED_GONE;
    if (!process_read(keeper, &p))
        return ADOPTED_ELSEWHERE;
    if (p.started != keeper_began)
        return ADOPTED_GONE;
    return p.ppid == getpid() ? ADOPTED_OURS : ADOPTED_ELSEWHERE;
}
