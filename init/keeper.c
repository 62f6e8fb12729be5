/* The keeper and the command.
 *
 *   hold ─ keeper ─ command ─ ...
 *
 * The keeper is the root of what a checkpoint dumps. So it is a child subreaper (a daemon that
 * forks twice must not fall out of the tree), holds the terminal's master side (queued terminal
 * data is only saved when both ends are in the tree), and has nothing of the container runtime's
 * stdio. It does nothing but reap, and start what is asked for in the file of jobs.c; when the
 * command ends it ends the same way, so hold reads the command's status from the keeper's.
 *
 * Both die when their parent does: without a guard there is no session. But not the keeper of a
 * hold that is PID 1: its end is theirs in any case, and a restored keeper's first parent is the
 * checkpoint tool, which goes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"
#include "jobs.h"

#define CANNOT_FORK "cannot start a process: %s; raise the limit on processes"

/* Sent up a close-on-exec pipe; the end of the pipe without a FAILED_* means the command runs. */
struct report {
    enum { COMMAND_PID, FAILED_FILTER, FAILED_FORK, FAILED_TERMINAL, FAILED_CWD, FAILED_EXEC } what;
    int value;                      /* a pid, or errno */
};

static void report(int fd, int what, int value)
{
    struct report r = {.what = what, .value = value};
    while (write(fd, &r, sizeof r) < 0 && errno == EINTR)
        ;
}

__attribute__((format(printf, 3, 4)))
static bool fail(struct failure *f, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    f->code = code;
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    return false;
}

static bool open_terminal(const struct options *o, struct started *s, int *slave, struct failure *f)
{
    s->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (s->master < 0 || grantpt(s->master) < 0 || unlockpt(s->master) < 0 ||
        ptsname_r(s->master, s->tty, sizeof s->tty) != 0)
        return fail(f, 1, "cannot open a terminal: %s; /dev/ptmx must exist and devpts be mounted",
                    strerror(errno));
    struct winsize size = {.ws_col = o->columns, .ws_row = o->rows};
    ioctl(s->master, TIOCSWINSZ, &size);
    *slave = open(s->tty, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*slave < 0)
        return fail(f, 1, "cannot open terminal %s: %s; devpts must be mounted on /dev/pts", s->tty,
                    strerror(errno));
    return true;
}

/* The check after prctl() closes the gap in which the parent could already have died. */
void die_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

static bool exists_on_path(const char *name)
{
    char *path = strdup(getenv("PATH") ? getenv("PATH") : ""), *rest = path, whole[4096];
    bool found = false;
    for (char *part; path && !found && (part = strsep(&rest, ":"));) {
        snprintf(whole, sizeof whole, "%s/%s", *part ? part : ".", name);
        found = access(whole, F_OK) == 0;
    }
    free(path);
    return found;
}

/* execvp() says EACCES when any directory of PATH is closed to us, also for a name that is
 * nowhere to be found; a person who mistyped it should not be sent to look at permissions. */
int exec_error(const char *name, int error)
{
    bool searched = !strchr(name, '/');
    return error == EACCES && searched && !exists_on_path(name) ? ENOENT : error;
}

_Noreturn static void command_run(const struct options *o, pid_t keeper, int slave, int pipe)
{
    die_with_parent(keeper);
    signals_to_default();
    setsid();
    if (ioctl(slave, TIOCSCTTY, 0) < 0 || dup2(slave, 0) < 0 || dup2(slave, 1) < 0 ||
        dup2(slave, 2) < 0) {
        report(pipe, FAILED_TERMINAL, errno);
        _exit(1);
    }
    close_all_but(&pipe, 1);
    if (o->cwd && chdir(o->cwd) < 0) {
        report(pipe, FAILED_CWD, errno);
        _exit(1);
    }
    execvp(o->command[0], o->command);
    report(pipe, FAILED_EXEC, exec_error(o->command[0], errno));
    _exit(127);
}

_Noreturn static void end_like(int status)
{
    if (WIFEXITED(status))
        _exit(WEXITSTATUS(status));
    int number = WTERMSIG(status);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signals_to_default();
    kill(getpid(), number);
    _exit(128 + number);
}

_Noreturn static void keeper_run(const struct options *o, pid_t hold, const struct started *s,
                                 int slave, int pipe)
{
    if (hold != 1)
        die_with_parent(hold);
    signals_to_default();
    /* Unlike hold it belongs to what is dumped, and so may be looked into: nothing of hold's that
     * the session must not know stays in it. */
    control_forget();
    nonce_forget();
    prctl(PR_SET_DUMPABLE, 1);
    /* Signals meant for the session's groups must not take the keeper, whose end is the end. */
    static const int deaf[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2,
                               SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU};
    for (size_t i = 0; i < sizeof deaf / sizeof *deaf; i++)
        signal(deaf[i], SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "keeper");
    setsid();
    stdio_to_null();
    int jobs = s->jobs < 0 ? -1 : dup3(s->jobs, JOBS_FD, O_CLOEXEC);
    int keep[] = {s->master, slave, pipe, jobs};
    close_all_but(keep, jobs < 0 ? 3 : 4);
    int why = o->movable ? filter_install() : 0;
    if (why) {
        report(pipe, FAILED_FILTER, why);
        _exit(1);
    }
    pid_t self = getpid(), command = fork();
    if (command == 0)
        command_run(o, self, slave, pipe);
    report(pipe, command < 0 ? FAILED_FORK : COMMAND_PID, command < 0 ? errno : command);
    if (command < 0)
        _exit(1);
    close(slave);
    close(pipe);
    if (chdir("/") < 0) {
        /* Only means that the directory hold was started in stays busy. */
    }
    end_like(jobs_serve(jobs, command));
}

static bool explain(const struct options *o, const struct report *r, struct failure *f)
{
    const char *name = o->command[0], *why = strerror(r->value);
    switch (r->what) {
    case COMMAND_PID:
        break;
    case FAILED_FILTER:
        return fail(f, 1, "cannot filter system calls: %s; leave out --movable, or run on a kernel "
                    "with seccomp filters", why);
    case FAILED_FORK:
        return fail(f, 1, CANNOT_FORK, why);
    case FAILED_TERMINAL:
        return fail(f, 1, "cannot take the terminal: %s; run hold outside any sandbox that forbids it",
                    why);
    case FAILED_CWD:
        return fail(f, 1, "cannot enter directory %s: %s; give one that exists with --cwd", o->cwd,
                    why);
    case FAILED_EXEC:
        if (r->value == ENOENT || r->value == ENOTDIR)
            return fail(f, 127, "command not found: %s; check its name and PATH", name);
        return fail(f, 126, "cannot run %s: %s; it must be an executable file", name, why);
    }
    return true;
}

/* A child in vfork() has no memory of its own to set up. */
__attribute__((noinline)) static pid_t made_and_gone(void)
{
    pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return pid;
}

/* The kernel counts up, and starts over at 300. As many tries as there are pids: with a small
 * pid_max the number never comes. */
static bool use_up_pids(unsigned upto, struct failure *f)
{
    pid_t last = 0;
    for (unsigned tries = 0; tries < upto && (unsigned)last < upto; tries++) {
        last = made_and_gone();
        if (last < 0)
            return fail(f, 1, CANNOT_FORK, strerror(errno));
    }
    return true;
}

bool keeper_start(const struct options *o, struct started *s, struct failure *f)
{
    int slave = -1, pipe[2];
    if (getpid() == 1 && !use_up_pids(o->reserve, f))
        return false;
    if (!open_terminal(o, s, &slave, f))
        return false;
    if (pipe2(pipe, O_CLOEXEC) < 0)
        return fail(f, 1, "cannot make a pipe: %s; raise the limit on open files", strerror(errno));
    s->jobs = jobs_make();
    pid_t self = getpid();
    s->keeper = fork();
    if (s->keeper < 0)
        return fail(f, 1, CANNOT_FORK, strerror(errno));
    if (s->keeper == 0)
        keeper_run(o, self, s, slave, pipe[1]);
    close(slave);
    close(pipe[1]);
    struct report r;
    for (;;) {
        ssize_t n = read(pipe[0], &r, sizeof r);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof r)
            break;
        if (!explain(o, &r, f))
            return false;
        s->command = r.value;
    }
    close(pipe[0]);
    if (s->command == 0)
        return fail(f, 1, "the session's keeper ended before the command started; try again");
    return true;
}
