/* What the keeper does for jobs, and how hold finds the file.
 *
 *   sidecar ─ asks in the file, has hold nudge the keeper (SIGUSR1)
 *   keeper  ─ starts it, takes its output from a pipe into the file's ring, reaps it, says so there
 *
 * Decided by what the file says and not by the signal: one more or one less changes nothing, and
 * neither does a sidecar that is killed at any point, or a restore in another pod. A job that
 * prints more than the ring has lost nothing of its own: the keeper always reads on.
 *
 * The file is written by processes of the session's own uid at worst; what it says harms the
 * session alone. hold never reads it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"
#include "jobs.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif

#define ENVIRONMENT_MAX (2u * 1024 * 1024)      /* the kernel's own bound is about this */
#define READS_MAX 16                            /* of one job in a turn: others have their turn too */
/* When the command has ended its jobs are hung up, and have this long, as all that it leaves. */
#define REMAINS_NS 1000000000ull

static struct job {
    pid_t pid;                      /* 0: none, or reaped */
    int output;                     /* -1: closed */
} jobs[JOB_SLOTS];

int jobs_make(void)
{
    struct jobs_head head = {.slots = JOB_SLOTS, .spec_bytes = JOB_SPEC_BYTES,
                             .ring_bytes = JOB_RING_BYTES};
    int file = memfd_create(JOBS_NAME, MFD_CLOEXEC);
    if (file < 0 && errno == EACCES)        /* where files in memory must not be programs */
        file = memfd_create(JOBS_NAME, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    memcpy(head.magic, JOBS_MAGIC, sizeof head.magic);
    if (file >= 0 && ftruncate(file, JOBS_BYTES) == 0 &&
        pwrite(file, &head, sizeof head, 0) == (ssize_t)sizeof head)
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* Whatever the session may have put there is first held without opening it, which could block, and
 * then known by its name. */
int jobs_find(pid_t keeper)
{
    static const char wanted[] = "/memfd:" JOBS_NAME " (deleted)";
    char path[64], name[sizeof wanted + 1];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", keeper, JOBS_FD);
    int held = open(path, O_PATH | O_CLOEXEC), file = -1;
    if (held < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", held);
    ssize_t length = readlink(path, name, sizeof name);
    if (length == (ssize_t)sizeof wanted - 1 && memcmp(name, wanted, sizeof wanted - 1) == 0)
        file = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    close(held);
    return file;
}

static off_t slot_at(int i)
{
    return (off_t)(JOBS_SLOTS_AT + (size_t)i * sizeof(struct job_slot));
}

static void tell(int file, int i, const struct job_told *told)
{
    off_t at = slot_at(i) + (off_t)offsetof(struct job_slot, told);
    if (pwrite(file, told, sizeof *told, at) != (ssize_t)sizeof *told) {
        /* Out of memory: the next change tells it again. */
    }
}

/* -- in the job ------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3)))
_Noreturn static void cannot(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vdprintf(2, format, args);
    va_end(args);
    _exit(code);
}

static char *read_all(int fd, size_t most, size_t *length)
{
    char *text = malloc(most + 1);
    *length = 0;
    for (ssize_t n; text && *length < most && (n = read(fd, text + *length, most - *length)) > 0;)
        *length += (size_t)n;
    if (text)
        text[*length] = '\0';
    return text;
}

/* As it was when that process was started: the kernel knows no more. */
static void environment_of(pid_t pid)
{
    char path[64];
    size_t length;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd < 0 ? NULL : read_all(fd, ENVIRONMENT_MAX, &length);
    if (fd >= 0)
        close(fd);
    if (!text || !length)
        return;                     /* another user's: the one hold was started with will do */
    clearenv();
    for (char *one = text; one < text + length; one += strlen(one) + 1)
        if (strchr(one, '='))
            putenv(one);
}

static void directory_of(pid_t pid, const char *wanted)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cwd", pid);
    if (*wanted && chdir(wanted) < 0)
        cannot(126, "holdfast: cannot enter %s: %s\n", wanted, strerror(errno));
    if (!*wanted && chdir(path) < 0 && chdir("/") < 0)
        cannot(126, "holdfast: cannot enter /: %s\n", strerror(errno));
}

static char *next(char **at, const char *end)
{
    char *one = *at;
    if (one >= end)
        cannot(126, "holdfast: the job was asked for in a wrong form\n");
    *at += strlen(one) + 1;
    return one;
}

_Noreturn static void job_exec(char *text, size_t length)
{
    struct job_spec spec;
    if (length < sizeof spec)
        cannot(126, "holdfast: the job was asked for in a wrong form\n");
    memcpy(&spec, text, sizeof spec);
    char *at = text + sizeof spec, *end = text + length;
    const char *directory = next(&at, end);
    if (!spec.arguments || spec.arguments > length || spec.settings > length)
        cannot(126, "holdfast: the job was asked for in a wrong form\n");
    char **words = calloc(spec.arguments + 1, sizeof *words);
    if (!words)
        cannot(126, "holdfast: out of memory\n");
    for (uint32_t i = 0; i < spec.arguments; i++)
        words[i] = next(&at, end);
    environment_of(spec.like);
    for (uint32_t i = 0; i < spec.settings; i++)
        putenv(next(&at, end));
    directory_of(spec.like, directory);
    execvp(words[0], words);
    int why = exec_error(words[0], errno);
    cannot(why == ENOENT ? 127 : 126, "holdfast: cannot run %s: %s\n", words[0], strerror(why));
}

_Noreturn static void job_run(int file, int i, size_t length, pid_t keeper, int output)
{
    die_with_parent(keeper);
    signals_to_default();
    setsid();                       /* no terminal: what is on it stays untouched */
    if (dup2(output, 1) < 0 || dup2(output, 2) < 0)
        _exit(126);
    char *text = malloc(length + 1);
    off_t at = (off_t)(JOBS_SPECS_AT + (size_t)i * JOB_SPEC_BYTES);
    if (!text || pread(file, text, length, at) != (ssize_t)length)
        cannot(126, "holdfast: the job cannot be read\n");
    text[length] = '\0';
    close_all_but(NULL, 0);
    job_exec(text, length);
}

/* -- in the keeper ---------------------------------------------------------------------------- */

static void start(int file, int i, struct job_slot *slot)
{
    int ends[2];
    pid_t self = getpid();
    slot->told = (struct job_told){.state = JOB_DONE, .signalled = slot->asked.signals,
                                   .started_ns = clock_ns(CLOCK_REALTIME)};
    slot->told.ended_ns = slot->told.started_ns;
    if (slot->asked.length > JOB_SPEC_BYTES || pipe2(ends, O_CLOEXEC) < 0) {
        slot->told.error = slot->asked.length > JOB_SPEC_BYTES ? E2BIG : errno;
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        job_run(file, i, slot->asked.length, self, ends[1]);
    close(ends[1]);
    if (pid < 0) {
        slot->told.error = errno;
        close(ends[0]);
        return;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    jobs[i] = (struct job){.pid = pid, .output = ends[0]};
    slot->told.state = JOB_RUNNING;
    slot->told.pid = pid;
    slot->told.ended_ns = 0;
}

static void forget(int file, int i, struct job_slot *slot)
{
    off_t ring = (off_t)(JOBS_RINGS_AT + (size_t)i * JOB_RING_BYTES);
    off_t spec = (off_t)(JOBS_SPECS_AT + (size_t)i * JOB_SPEC_BYTES);
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ring, JOB_RING_BYTES);
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, spec, JOB_SPEC_BYTES);
    slot->told = (struct job_told){.state = JOB_FREE, .signalled = slot->asked.signals};
}

/* What is asked for and not yet so. */
static void look(int file)
{
    for (int i = 0; file >= 0 && i < JOB_SLOTS; i++) {
        struct job_slot slot;
        if (pread(file, &slot, sizeof slot, slot_at(i)) != (ssize_t)sizeof slot)
            continue;
        bool fresh = slot.asked.wanted == 1 && slot.told.state == JOB_FREE;
        bool old = slot.asked.wanted == 0 && slot.told.state == JOB_DONE;
        bool signal = slot.asked.signals != slot.told.signalled;
        if (fresh)
            start(file, i, &slot);
        else if (old)
            forget(file, i, &slot);
        else if (signal)
            slot.told.signalled = slot.asked.signals;
        /* Only while it is not reaped is the number surely its own. */
        if (signal && !fresh && jobs[i].pid > 0)
            kill(-jobs[i].pid, slot.asked.signal);
        if (fresh || old || signal)
            tell(file, i, &slot.told);
    }
}

static void changed(int file, int i, void (*change)(struct job_told *, const void *),
                    const void *with)
{
    struct job_slot slot;
    if (pread(file, &slot, sizeof slot, slot_at(i)) != (ssize_t)sizeof slot)
        return;
    change(&slot.told, with);
    if (jobs[i].pid == 0 && jobs[i].output < 0)
        slot.told.state = JOB_DONE;
    tell(file, i, &slot.told);
}

static void ended(struct job_told *told, const void *status)
{
    told->status = *(const int *)status;
    told->ended_ns = clock_ns(CLOCK_REALTIME);
    told->state = JOB_OVER;
}

static void advanced(struct job_told *told, const void *count)
{
    told->head += *(const size_t *)count;
}

static void put(int file, int i, const char *data, size_t length)
{
    struct job_slot slot;
    if (pread(file, &slot, sizeof slot, slot_at(i)) != (ssize_t)sizeof slot)
        return;
    off_t ring = (off_t)(JOBS_RINGS_AT + (size_t)i * JOB_RING_BYTES);
    size_t at = slot.told.head % JOB_RING_BYTES;
    size_t first = length < JOB_RING_BYTES - at ? length : JOB_RING_BYTES - at;
    ssize_t n = pwrite(file, data, first, ring + (off_t)at);
    if (n == (ssize_t)first && length > first)
        n = pwrite(file, data + first, length - first, ring);
    if (n < 0) {
        /* No memory for it: it counts as printed, and reads as zeros. */
    }
    changed(file, i, advanced, &length);
}

static void collect(int file, int i)
{
    static char data[65536];
    for (int turns = 0; turns < READS_MAX; turns++) {
        ssize_t n = read(jobs[i].output, data, sizeof data);
        if (n > 0) {
            put(file, i, data, (size_t)n);
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        close(jobs[i].output);
        jobs[i].output = -1;
        size_t none = 0;
        changed(file, i, advanced, &none);
        return;
    }
}

/* True when the command has ended. */
static bool reap(int file, pid_t command, int *status)
{
    bool over = false;
    int how;
    for (pid_t gone; (gone = waitpid(-1, &how, WNOHANG)) > 0;) {
        if (gone == command) {
            *status = how;
            over = true;
        }
        for (int i = 0; i < JOB_SLOTS; i++)
            if (jobs[i].pid == gone) {
                jobs[i].pid = 0;
                changed(file, i, ended, &how);
            }
    }
    return over;
}

static void woken(int number)
{
    (void)number;                   /* to interrupt the wait is all it is for */
}

static int patience_ms(bool over, uint64_t until)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    return !over ? -1 : now >= until ? 0 : (int)((until - now) / 1000000) + 1;
}

static bool any_left(void)
{
    for (int i = 0; i < JOB_SLOTS; i++)
        if (jobs[i].pid > 0)
            return true;
    return false;
}

static void await(int file, int wait_ms, const sigset_t *awake)
{
    struct pollfd set[JOB_SLOTS];
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000L};
    for (int i = 0; i < JOB_SLOTS; i++)
        set[i] = (struct pollfd){.fd = jobs[i].output, .events = POLLIN};
    if (ppoll(set, JOB_SLOTS, wait_ms < 0 ? NULL : &wait, awake) <= 0)
        return;
    for (int i = 0; i < JOB_SLOTS; i++)
        if (set[i].revents)
            collect(file, i);
}

int jobs_serve(int file, pid_t command)
{
    struct sigaction wake = {.sa_handler = woken, .sa_flags = SA_NOCLDSTOP};
    sigset_t asleep, awake;
    uint64_t until = 0;
    bool over = false;
    int status = 0;
    for (int i = 0; i < JOB_SLOTS; i++)
        jobs[i] = (struct job){.output = -1};
    sigemptyset(&asleep);
    sigaddset(&asleep, SIGCHLD);
    sigaddset(&asleep, SIGUSR1);
    sigprocmask(SIG_BLOCK, &asleep, &awake);
    sigaction(SIGCHLD, &wake, NULL);
    sigaction(SIGUSR1, &wake, NULL);
    for (;;) {
        if (reap(file, command, &status)) {
            over = true;
            until = clock_ns(CLOCK_MONOTONIC) + REMAINS_NS;
            for (int i = 0; i < JOB_SLOTS; i++)
                if (jobs[i].pid > 0 && kill(-jobs[i].pid, SIGHUP) == 0)
                    kill(-jobs[i].pid, SIGCONT);
        }
        if (over && (!any_left() || clock_ns(CLOCK_MONOTONIC) >= until)) {
            for (int i = 0; i < JOB_SLOTS; i++)
                if (jobs[i].output >= 0)
                    collect(file, i);       /* last words */
            return status;
        }
        if (!over)
            look(file);
        await(file, patience_ms(over, until), &awake);
    }
}
