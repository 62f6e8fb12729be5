/* The guard: one poll loop over signals, the deadline's timer and the control socket.
 *
 *   hold.c      options, background, namespaces      → guard_run
 *   keeper.c    terminal, keeper, command            → what is guarded (filter.c: what it may not)
 *   jobs.c      what the keeper runs beside it
 *   adopt.c     the same, restored by someone else
 *   control.c   socket → requests.c → session_*()    → what a peer may ask
 *   fence.c     everything stands still, and is kept so
 *   freeze.c    stop, continue, end processes          (tree.c reads them from /proc)
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
/* The keeper needs a moment to reap the command after all else was killed. */
#define KEEPER_GRACE_NS (1000 * MS)
/* A peer takes its packets slowly. */
#define SLOW_PEER_MS 1000
/* Between the command's end and hold's own, nothing else may run in its namespace. */
#define REMAINS_MS 100
/* Nobody tells of it when an adopted keeper becomes hold's child, or ends as another's. */
#define ADOPTED_MS 50
#define END_TICK_MS 20
/* Of one wake: a session that signals hold without end must not keep it from its deadline. */
#define SIGNALS_MAX 16
/* As a process that SIGTERM ended: what hold says when it was told to go before it began. */
#define NEVER_BEGAN (128 + SIGTERM)

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

static int signals_fd = -1, timer_fd = -1;

bool session_past_deadline(const struct session *s)
{
    return s->armed && (clock_ns(CLOCK_BOOTTIME) >= s->deadline_boot_ns ||
                        clock_ns(CLOCK_MONOTONIC_RAW) >= s->deadline_raw_ns);
}

static void check_deadline(struct session *s)
{
    if (s->expired || !session_past_deadline(s))
        return;
    s->expired = true;
    if (s->ending)                  /* past the fence nothing may use up its grace */
        s->kill_at_ns = 0;
    else if (s->began && !s->exited)
        fence_down(s, FROZEN_BY_DEADLINE, &(struct freeze_result){0});
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

void session_end(struct session *s, uint64_t grace_ms, int by)
{
    if (!s->exited && s->by == BY_ITSELF)
        s->by = by;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    uint64_t kill_at = s->expired ? now : now + grace_ms * MS;
    if (!s->ending || kill_at < s->kill_at_ns)
        s->kill_at_ns = kill_at;
    /* Past the deadline the session must not run again, not even to say goodbye. */
    if (!s->ending && !s->expired && grace_ms > 0)
        hang_up_tree(getpid(), s->started.keeper);
    s->ending = true;
    fence_forget(s);
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

const char *session_ended_by(const struct session *s)
{
    static const char *const names[] = {[BY_ITSELF] = "itself", [BY_END] = "end", [BY_TERM] = "term"};
    return names[s->by];
}

static void exit_event(const struct session *s)
{
    char code[16] = "null", number[16] = "null", text[128];
    if (WIFEXITED(s->status))
        snprintf(code, sizeof code, "%d", WEXITSTATUS(s->status));
    else
        snprintf(number, sizeof number, "%d", WTERMSIG(s->status));
    snprintf(text, sizeof text, "{\"event\":\"exited\",\"code\":%s,\"signal\":%s,\"by\":\"%s\"}",
             code, number, session_ended_by(s));
    control_event(text);
}

static void keeper_ended(struct session *s, int status)
{
    s->exited = true;
    s->elsewhere = false;
    tree_also(0);
    s->status = status;
    session_end(s, REMAINS_GRACE_MS, BY_ITSELF);
    exit_event(s);
}

static void reap(struct session *s)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        if (pid == s->started.keeper && !s->exited)
            keeper_ended(s, status);
}

/* After reap(): one that ended as hold's child has been taken, or still waits to be. */
static void follow_adopted(struct session *s)
{
    enum adopted now = adopted_state();
    if (now == ADOPTED_GONE) {
        keeper_ended(s, SIGKILL);   /* its parent knows how; here, that it is no more */
    } else if (now == ADOPTED_OURS) {
        s->elsewhere = false;
        tree_also(0);
    }
}

/* PID 1 is not to be ended from inside, and a SIGTERM that is waited for gets past the kernel's own
 * guard. A sender outside the namespace has no pid here. One inside can hide its own in other ways
 * (sigqueue, F_SETSIG), but only under codes that are not these. */
static bool from_inside(const struct session *s, const struct signalfd_siginfo *info)
{
    int code = info->ssi_code;
    bool true_pid = code == SI_USER || code == SI_TKILL || code == SI_KERNEL;
    return s->namespaced && (info->ssi_pid != 0 || !true_pid);
}

static void take_term(struct session *s)
{
    s->lingering = false;
    if (!s->began) {
        s->leaving = true;
    } else if (s->exited) {         /* nothing is left to wait for but a reader */
        s->collected = true;
        session_end(s, 0, BY_TERM);
    } else {
        session_end(s, s->options.term_grace_ms, BY_TERM);
    }
}

/* Only a session that runs can be moved away meanwhile. */
static void on_term(struct session *s)
{
    char text[64];
    if (s->lingering && !s->exited)
        return;
    if (!s->began || s->exited || s->ending || s->options.linger_ms == 0) {
        take_term(s);
        return;
    }
    s->lingering = true;
    s->term_at_ns = clock_ns(CLOCK_MONOTONIC) + s->options.linger_ms * MS;
    snprintf(text, sizeof text, "{\"event\":\"leaving\",\"milliseconds\":%u}",
             s->options.linger_ms);
    control_event(text);
}

void session_heed(struct session *s)
{
    if (s->lingering && !s->exited)
        take_term(s);
}

static void read_signals(struct session *s)
{
    struct signalfd_siginfo info;
    for (int i = 0; i < SIGNALS_MAX; i++) {
        if (read(signals_fd, &info, sizeof info) != (ssize_t)sizeof info)
            break;
        if (info.ssi_signo == SIGTERM && !from_inside(s, &info))
            on_term(s);
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

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t left_ms(int clock, uint64_t at_ns)
{
    uint64_t now = clock_ns(clock);
    return (at_ns > now ? at_ns - now : 0) / MS + 1;
}

/* How long the loop may sleep. The timer wakes it for CLOCK_BOOTTIME; this does for the raw clock. */
static int patience_ms(const struct session *s)
{
    uint64_t least = 3600 * 1000;
    if (s->armed && !s->expired)
        least = smaller(least, left_ms(CLOCK_MONOTONIC_RAW, s->deadline_raw_ns));
    if (s->lingering)
        least = smaller(least, left_ms(CLOCK_MONOTONIC, s->term_at_ns));
    if (s->elsewhere)
        least = smaller(least, ADOPTED_MS);
    if (s->ending)
        least = smaller(least, END_TICK_MS);
    else if (s->exited && s->namespaced)
        least = smaller(least, REMAINS_MS);
    else if (s->frozen)
        least = smaller(least, fence_patience_ms(s));
    if (control_busy())
        least = smaller(least, SLOW_PEER_MS);
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
    if (s->elsewhere)
        follow_adopted(s);
    if (s->lingering && clock_ns(CLOCK_MONOTONIC) >= s->term_at_ns)
        take_term(s);
    if (ready > 0)
        control_handle(s, set + 2, count);
    control_drop_stalled();
    if (s->ending)
        end_step(s);
    else if (s->exited && s->namespaced)
        kill_tree(getpid(), 0);     /* what entered the namespace since */
    else if (s->frozen)
        fence_watch(s);
}

/* The directory it was started in must not stay busy. */
static void leave_directory(void)
{
    if (chdir("/") < 0)
        die(1, "cannot enter /: %s", strerror(errno));
}

bool session_start(struct session *s)
{
    s->began = keeper_start(&s->options, &s->started, &s->failure);
    s->leaving = !s->began;
    if (s->began)
        leave_directory();
    return s->began;
}

const char *session_adopt(struct session *s, const struct adoption *a)
{
    const char *why = adopt(a, &s->started);
    if (why)
        return why;
    s->began = s->elsewhere = true;
    tree_also(a->keeper);
    leave_directory();
    return NULL;
}

static int make_outbox(void)
{
    int fd = memfd_create("outbox", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)      /* a kernel before 6.3; later ones may insist on it */
        fd = memfd_create("outbox", MFD_CLOEXEC);
    if (fd < 0)
        die(1, "cannot make a file in memory: %s; raise the limit on open files", strerror(errno));
    return fd;
}

static bool over(const struct session *s)
{
    return s->began ? s->exited && s->collected && !s->ending : s->leaving;
}

/* Before anything else, so that nothing of the session runs that could take it. False: hold was
 * told to go meanwhile. */
static bool await_nonce(struct session *s)
{
    if (!s->options.nonce_from) {
        nonce_make();
        return true;
    }
    int fifo = nonce_open(s->options.nonce_from);
    for (bool known = false; !known;) {
        struct pollfd set[] = {{.fd = signals_fd, .events = POLLIN}, {.fd = fifo, .events = POLLIN}};
        int ready = poll(set, 2, -1);
        if (ready > 0 && set[0].revents)
            read_signals(s);
        if (s->leaving)
            return false;
        if (ready > 0 && set[1].revents)
            known = nonce_read(fifo);
    }
    close(fifo);
    return true;
}

int guard_run(const struct options *o)
{
    struct session s = {.options = *o, .started = {.master = -1, .jobs = -1}, .namespaced = getpid() == 1};
    /* As PID 1 it shares its uid with the session, but not its memory and descriptors. */
    if (s.namespaced)
        prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    watch_signals();                /* the keeper undoes this for itself and the command */
    if (!await_nonce(&s))
        return NEVER_BEGAN;
    control_listen(o->socket, o->shared);
    s.outbox = make_outbox();
    if (!o->wait)
        session_start(&s);
    if (s.failure.code)
        die(s.failure.code, "%s", s.failure.text);
    report_ready();
    reap(&s);                       /* it may have ended before its end was watched for */
    while (!over(&s))
        turn(&s);
    if (s.failure.code) {
        control_flush();
        die(s.failure.code, "%s", s.failure.text);
    }
    control_unlink();
    if (!s.began)
        return NEVER_BEGAN;
    return WIFEXITED(s.status) ? WEXITSTATUS(s.status) : 128 + WTERMSIG(s.status);
}
