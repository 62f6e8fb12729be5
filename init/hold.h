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
void report_ready(void);            /* the socket listens and the command runs */

/* util.c */
void *must_realloc(void *old, size_t size);
uint64_t clock_ns(int clock);
void pause_us(unsigned microseconds);
void close_all_but(const int *keep, size_t count);
void stdio_to_null(void);
void signals_to_default(void);

struct options {
    const char *socket;             /* absolute */
    const char *cwd;                /* NULL: as inherited */
    unsigned short columns, rows;
    bool daemon;
    enum { NAMESPACE_AUTO, NAMESPACE_YES, NAMESPACE_NO } namespace;
    char **command;
};

/* keeper.c */
struct started {
    pid_t keeper, command;
    int master;
    char tty[64];
};
void keeper_start(const struct options *o, struct started *s);   /* dies on any failure */

/* Who asked for the freeze that is on; both may have. */
enum { FROZEN_BY_REQUEST = 1, FROZEN_BY_DEADLINE = 2 };

/* The one session this process guards.
 * Invariant: `expired` implies nothing of the session runs, but for what the kernel refused to
 * let hold stop; nothing but a later deadline clears it. */
struct session {
    struct started started;
    bool namespaced;                /* hold is PID 1 of the session's PID namespace */
    unsigned frozen;                /* FROZEN_BY_* */
    bool incomplete;                /* the last freeze left something running: try again soon */

    bool armed, expired;
    uint64_t deadline_boot_ns;      /* CLOCK_BOOTTIME: counts while the machine is suspended */
    uint64_t deadline_raw_ns;       /* CLOCK_MONOTONIC_RAW: not slewed by NTP */

    bool exited, collected;
    int status;                     /* of waitpid(), once exited */

    /* A file in memory from which the sidecar types with sendfile(). Its offset, which moves with
     * each byte the terminal takes, lives here and so outlives a sidecar killed in the act. */
    int outbox;

    bool ending;
    uint64_t kill_at_ns;            /* CLOCK_MONOTONIC */
};

/* guard.c */
struct freeze_result;
int guard_run(const struct options *o);
void session_freeze(struct session *s, struct freeze_result *result);
void session_set_deadline(struct session *s, uint64_t boot_ns);
void session_thaw(struct session *s);
void session_end(struct session *s, uint64_t grace_ms);

/* control.c: the socket and its connections */
struct pollfd;
#define CONTROL_POLL_MAX 9
#define REQUEST_MAX 256             /* bytes; every request is a word or two */
void control_listen(const char *path);
void control_unlink(void);
size_t control_poll_set(struct pollfd *set);
void control_handle(struct session *s, const struct pollfd *set, size_t count);
void control_drop_stalled(void);
bool control_busy(void);            /* a peer has packets waiting: look again soon */
void control_event(const char *json);

/* requests.c */
struct connection;
void request_handle(struct session *s, struct connection *c, char *text, size_t length);
void connection_send(struct connection *c, const char *text, size_t length, int with_fd);
struct graph_job;
void connection_start_graph(struct connection *c, struct graph_job *job);

#endif
