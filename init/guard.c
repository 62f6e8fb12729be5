/* The guard: one poll loop over signals, the deadline's timer and the control socket.
 *
 *   hold.c      options, background, namespaces      → guard_run
 *   keeper.c    terminal, keeper, command            → what is guarded
 *   control.c   socket → requests.c → session_*()    → what a peer may ask
 *   freeze.c    stop, continue, end the tree           (tree.c reads it from /proc)
 *   graph.c     one JSON packet per process            (waits.c, listeners.c, json.c)
 *
 * Nothing here waits for a peer, and every wait for the kernel is bounded. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "freeze.h"
#include "hold.h"
#include "tree.h"

#define MS 1000000ull

/* What is left when the command has ended gets this long to take its hangup. */
#define REMAINS_GRACE_MS 1000
/* On SIGTERM; well inside the 30 s that Kubernetes gives a pod. */
#define TERM_GRACE_MS 5000
/* The keeper needs a moment to reap the command after all else was killed. */
#define KEEPER_GRACE_NS (1000 * MS)
/* While the fence is down: something outside may have continued a process, and a program that
 * could not be stopped may have started one that can. */
#define REFREEZE_MS 1000
#define RETRY_MS 100
#define END_TICK_MS 20

static int signals_fd = -1, timer_fd = -1;

static void announce_frozen(const char *by)
{
    char text[64];
    snprintf(text, sizeof text, "{\"event\":\"frozen\",\"by\":\"%s\"}", by);
    control_event(text);
}

static void freeze_now(struct session *s, unsigned by, struct freeze_result *result)
{
    bool news = s->frozen == 0;
    freeze_tree(getpid(), result);
    s->frozen |= by;
    s->incomplete = result->running > 0;
    if (news)
        announce_frozen(by == FROZEN_BY_DEADLINE ? "deadline" : "request");
}

void session_freeze(struct session *s, struct freeze_result *result)
{
    freeze_now(s, FROZEN_BY_REQUEST, result);
}

void session_thaw(struct session *s)
{
    if (s->expired || s->frozen == 0)
        return;
    thaw_tree(getpid());
    s->frozen = 0;
    s->incomplete = false;
    control_event("{\"event\":\"thawed\"}");
}

static bool deadline_passed(const struct session *s)
{
    return s->armed && (clock_ns(CLOCK_BOOTTIME) >= s->deadline_boot_ns ||
                        clock_ns(CLOCK_MONOTONIC_RAW) >= s->deadline_raw_ns);
}

static void check_deadline(struct session *s)
{
    if (s->expired || !deadline_passed(s))
        return;
    s->expired = true;
    if (s->ending)                  /* past the fence nothing may use up its grace */
        s->kill_at_ns = 0;
    else if (!s->exited)
        freeze_now(s, FROZEN_BY_DEADLINE, &(struct freeze_result){0});
}

void session_set_deadline(struct session *s, uint64_t boot_ns)
{
    uint64_t now = clock_ns(CLOCK_BOOTTIME), raw = clock_ns(CLOCK_MONOTONIC_RAW);
    uint64_t left = boot_ns > now ? boot_ns - now : 0;
    s->armed = true;
    s->deadline_boot_ns = boot_ns;
    s->deadline_raw_ns = left > UINT64_MAX - raw ? UINT64_MAX : raw + left;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(boot_ns / 1000000000u),
                                         .tv_nsec = (long)(boot_ns % 1000000000u)}};
    if (boot_ns == 0)
        at.it_value.tv_nsec = 1;    /* all zero would disarm the timer */
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    if (left == 0) {
        check_deadline(s);
        return;
    }
    s->expired = false;
    if (s->frozen == FROZEN_BY_DEADLINE)
        session_thaw(s);
    s->frozen &= ~(unsigned)FROZEN_BY_DEADLINE;
}

void session_end(struct session *s, uint64_t grace_ms)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    uint64_t kill_at = s->expired ? now : now + grace_ms * MS;
    if (!s->ending || kill_at < s->kill_at_ns)
        s->kill_at_ns = kill_at;
    /* Past the deadline the session must not run again, not even to say goodbye. */
    if (!s->ending && !s->expired && grace_ms > 0)
        hang_up_tree(getpid(), s->started.keeper);
    s->ending = true;
    s->frozen = 0;
    s->incomplete = false;
    freeze_forget();
}

static void end_step(struct session *s)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now < s->kill_at_ns) {
        struct tree t = {0};
        tree_scan(&t, getpid());
        s->ending = t.count > 0;
        tree_free(&t);
        return;
    }
    if (now >= s->kill_at_ns + KEEPER_GRACE_NS && !s->exited && s->kill_at_ns > 0)
        kill(s->started.keeper, SIGKILL);
    if (s->kill_at_ns == 0)
        s->kill_at_ns = now;
    s->ending = kill_tree(getpid(), s->exited ? 0 : s->started.keeper) > 0 || !s->exited;
}

static void exit_event(const struct session *s)
{
    char text[96];
    if (WIFEXITED(s->status))
        snprintf(text, sizeof text, "{\"event\":\"exited\",\"code\":%d,\"signal\":null}",
                 WEXITSTATUS(s->status));
    else
        snprintf(text, sizeof text, "{\"event\":\"exited\",\"code\":null,\"signal\":%d}",
                 WTERMSIG(s->status));
    control_event(text);
}

static void reap(struct session *s)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid != s->started.keeper)
            continue;
        s->exited = true;
        s->status = status;
        session_end(s, REMAINS_GRACE_MS);
        exit_event(s);
    }
}

static void read_signals(struct session *s)
{
    struct signalfd_siginfo info;
    while (read(signals_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGTERM)
            continue;
        if (s->exited)              /* asked to go, and nothing is left to wait for but a reader */
            s->collected = true;
        else
            session_end(s, TERM_GRACE_MS);
    }
    reap(s);
}

static void watch_signals(void)
{
    sigset_t watched;
    struct sigaction no_stops = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &no_stops, NULL);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigprocmask(SIG_SETMASK, &watched, NULL);
    signals_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (signals_fd < 0 || timer_fd < 0)
        die(1, "cannot watch signals and time: %s; this needs a Linux kernel", strerror(errno));
}

/* How long the loop may sleep. The timer wakes it for CLOCK_BOOTTIME; this does for the raw clock. */
static int patience_ms(const struct session *s)
{
    uint64_t least = 3600 * 1000;
    if (s->armed && !s->expired) {
        uint64_t raw = clock_ns(CLOCK_MONOTONIC_RAW);
        uint64_t left = s->deadline_raw_ns > raw ? s->deadline_raw_ns - raw : 0;
        least = left / MS + 1 < least ? left / MS + 1 : least;
    }
    if (s->ending)
        least = END_TICK_MS < least ? END_TICK_MS : least;
    else if (s->frozen && s->incomplete)
        least = RETRY_MS < least ? RETRY_MS : least;
    else if (s->frozen & FROZEN_BY_DEADLINE)
        least = REFREEZE_MS < least ? REFREEZE_MS : least;
    if (control_busy())
        least = REFREEZE_MS < least ? REFREEZE_MS : least;
    return (int)least;
}

static void turn(struct session *s)
{
    struct pollfd set[2 + CONTROL_POLL_MAX] = {{.fd = signals_fd, .events = POLLIN},
                                               {.fd = timer_fd, .events = POLLIN}};
    size_t count = control_poll_set(set + 2);
    int ready = poll(set, 2 + count, patience_ms(s));
    check_deadline(s);              /* the fence first: a request must not slip by it */
    if (ready > 0 && set[1].revents) {
        uint64_t ticks;
        if (read(timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
            die(1, "cannot read the deadline's timer: %s", strerror(errno));
    }
    if (ready > 0 && set[0].revents)
        read_signals(s);
    if (ready > 0)
        control_handle(s, set + 2, count);
    control_drop_stalled();
    if (s->ending) {
        end_step(s);
    } else if (ready == 0 && s->frozen && (s->incomplete || s->expired)) {
        struct freeze_result again;
        freeze_tree(getpid(), &again);
        s->incomplete = again.running > 0;
    }
}

int guard_run(const struct options *o)
{
    struct session s = {.namespaced = getpid() == 1};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    control_listen(o->socket);
    keeper_start(o, &s.started);
    s.outbox = memfd_create("outbox", MFD_CLOEXEC);
    if (s.outbox < 0)
        die(1, "cannot make a file in memory: %s; raise the limit on open files", strerror(errno));
    watch_signals();                /* after the fork: the keeper must not inherit the mask */
    if (chdir("/") < 0)             /* the directory it was started in must not stay busy */
        die(1, "cannot enter /: %s", strerror(errno));
    report_ready();
    reap(&s);                       /* it may have ended before its end was watched for */
    while (!(s.exited && s.collected && !s.ending))
        turn(&s);
    control_unlink();
    return WIFEXITED(s.status) ? WEXITSTATUS(s.status) : 128 + WTERMSIG(s.status);
}
