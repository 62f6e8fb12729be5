/* What the parts of hold share. See guard.c for who calls whom. */
#ifndef HOLD_H
#define HOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HOLD_VERSION "0.1.0"
#define PROTOCOL_VERSION 1

/* hold.c */
_Noreturn void die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_ready(void);            /* the socket listens and the command runs, unless it waits */

/* util.c */
void *must_realloc(void *old, size_t size);
uint64_t clock_ns(int clock);
void pause_us(unsigned microseconds);
void close_all_but(const int *keep, size_t count);
void stdio_to_null(void);
void signals_to_default(void);
bool read_size(const char *text, unsigned short *columns, unsigned short *rows);

/* A grace longer than an hour is a mistake, and must not overflow a clock. */
#define GRACE_MAX_MS 3600000u
/* Each is a process made and ended: this many take about a second. */
#define RESERVE_MAX 10000u

struct options {
    char **words;                   /* all it was started with */
    const char *socket;             /* absolute */
    const char *cwd;                /* NULL: as inherited */
    unsigned short columns, rows;
    bool daemon;
    bool wait;                      /* the command starts when a peer says so */
    bool shared;                    /* peers of any uid may connect */
    unsigned term_grace_ms;
    unsigned linger_ms;             /* a SIGTERM is announced, and heeded after this */
    const char *nonce_from;         /* a FIFO; NULL: hold makes its own nonce */
    unsigned reserve;               /* as PID 1: the session's pids are above this */
    bool movable;                   /* the session is kept from what cannot be checkpointed */
    enum { NAMESPACE_AUTO, NAMESPACE_YES, NAMESPACE_NO } namespace;
    char **command;
};

/* install.c */
void install(const char *path);     /* dies on any failure */

/* probe.c */
void probe(const char *path, bool ready);   /* dies if not */

/* nonce.c: names this incarnation of hold. Known to admitted peers alone, so a peer that meets it
 * again knows that it talks to the same hold and not to something that took its socket's place.
 * With --nonce-from it is the peer that makes it, and hold gets it before anything else runs. */
#define NONCE_MAX 64
void nonce_make(void);
void nonce_make_fifo(const char *path);         /* dies on any failure */
int nonce_open(const char *path);
bool nonce_read(int fd);                        /* false: not yet; dies if another has it */
const char *nonce_text(void);
void nonce_forget(void);

/* keeper.c */
struct started {
    pid_t keeper, command;          /* 0 until then */
    int master;
    int jobs;                       /* see jobs.h; -1: none */
    char tty[64];
};
struct failure {
    int code;                       /* the exit status it means; 0: none */
    char text[512];
};
bool keeper_start(const struct options *o, struct started *s, struct failure *f);
void die_with_parent(pid_t parent);             /* in a child */
int exec_error(const char *name, int error);    /* what to say of a failed execvp() */

/* filter.c: of this process and all it starts, for good. 0, or errno. */
int filter_install(void);
bool filter_possible(void);         /* on this kind of processor */

/* adopt.c: a restored keeper, command and terminal taken for ones that hold started. */
struct adoption {
    pid_t keeper, command;
    const char *tty;
    int master;                     /* PASSED_* if not exactly one descriptor came */
};
/* Why it cannot be, or NULL; then `s` has all of it, the master too. */
const char *adopt(const struct adoption *a, struct started *s);
/* Whose child the keeper is: the kernel tells only its parent of its end. */
enum adopted { ADOPTED_ELSEWHERE, ADOPTED_OURS, ADOPTED_GONE };
enum adopted adopted_state(void);

/* Who asked for the freeze that is on; both may have. */
enum { FROZEN_BY_REQUEST = 1, FROZEN_BY_DEADLINE = 2 };

/* What a freeze could not stop: how many, and the first of them. None: the freeze is whole. */
#define UNSTOPPED_MAX 16
struct unstopped {
    int count;
    pid_t pids[UNSTOPPED_MAX];
};

/* When a frozen session is looked at again; see fence.c. */
struct fence_watch {
    uint64_t look_at_ns, newcomers_at_ns;   /* CLOCK_MONOTONIC */
    unsigned quiet_ms;
    pid_t newest;
};

/* The one session this process guards.
 * Invariant: `expired` implies nothing of the session runs, but for what the kernel refused to
 * let hold stop; nothing but a later deadline clears it. */
struct session {
    struct options options;
    struct started started;
    bool began;                     /* the command was started */
    bool leaving;                   /* it will not be: hold goes */
    bool elsewhere;                 /* its keeper was adopted and has another parent yet */
    struct failure failure;         /* why it could not be */
    bool namespaced;                /* hold is PID 1 of the session's PID namespace */
    unsigned frozen;                /* FROZEN_BY_* */
    struct unstopped unstopped;     /* what the last look at a frozen session left running */
    struct fence_watch watch;       /* of one that is frozen */

    bool armed, expired;
    uint64_t deadline_boot_ns;      /* CLOCK_BOOTTIME: counts while the machine is suspended */
    uint64_t deadline_raw_ns;       /* CLOCK_MONOTONIC_RAW: not slewed by NTP */

    bool exited, collected;
    int status;                     /* of waitpid(), once exited */
    enum { BY_ITSELF, BY_END, BY_TERM } by;     /* what first called for its end */

    /* A file in memory from which the sidecar types with sendfile(). Its offset, which moves with
     * each byte the terminal takes, lives here and so outlives a sidecar killed in the act. */
    int outbox;

    bool lingering;                 /* a SIGTERM is being put off */
    uint64_t term_at_ns;            /* CLOCK_MONOTONIC: until then */

    bool ending;
    uint64_t kill_at_ns;            /* CLOCK_MONOTONIC */
};

/* fence.c: the session stands still, and is kept so */
struct freeze_result;
void fence_down(struct session *s, unsigned by, struct freeze_result *result);
void session_thaw(struct session *s);
void fence_forget(struct session *s);           /* the tree is being ended */
uint64_t fence_patience_ms(const struct session *s);
void fence_watch(struct session *s);            /* looks again, if it is time */
struct json;
void unstopped_write(struct json *j, const struct unstopped *u);

/* guard.c */
int guard_run(const struct options *o);
/* False: it could not be started, and hold goes once the peers know why. */
bool session_start(struct session *s);
/* Why it cannot be, or NULL: from then on it is as though hold had started it. */
const char *session_adopt(struct session *s, const struct adoption *a);
bool session_past_deadline(const struct session *s);
const char *session_ended_by(const struct session *s);
void session_set_deadline(struct session *s, uint64_t boot_ns);
void session_end(struct session *s, uint64_t grace_ms, int by);
void session_heed(struct session *s);   /* the SIGTERM that was put off, if one was */

/* control.c: the socket and its connections */
struct pollfd;
#define CONTROL_POLL_MAX 9
#define REQUEST_MAX 256             /* bytes; every request is a word or two */
void control_listen(const char *path, bool shared);
void control_unlink(void);
void control_forget(void);          /* in a child: drops the connections and what was queued */
void control_flush(void);           /* last words: waits for slow peers, but not for long */
size_t control_poll_set(struct pollfd *set);
void control_handle(struct session *s, const struct pollfd *set, size_t count);
void control_drop_stalled(void);
bool control_busy(void);            /* a peer has packets waiting: look again soon */
void control_event(const char *json);

/* requests.c */
struct connection;
enum { PASSED_NONE = -1, PASSED_MANY = -2 };
/* `passed` is the one descriptor that came along, or PASSED_*; a request that keeps it says so by
 * setting PASSED_NONE. */
void request_handle(struct session *s, struct connection *c, char *text, size_t length,
                    int *passed);
bool connection_spare(struct connection *c, pid_t pid);
void connection_send(struct connection *c, const char *text, size_t length, int with_fd);
struct graph_job;
void connection_start_graph(struct connection *c, struct graph_job *job);

#endif
