/* What a peer may ask: one packet of ASCII words. Anything else gets an error and changes nothing. */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "freeze.h"
#include "graph.h"
#include "hold.h"
#include "jobs.h"
#include "json.h"

static const char NOT_STARTED[] = "the command was not started yet; ask start first";

static void send_json(struct connection *c, struct json *j)
{
    connection_send(c, j->text, j->length, -1);
}

static void answer_ok(struct connection *c)
{
    connection_send(c, "{\"ok\":true}", strlen("{\"ok\":true}"), -1);
}

static void answer_error(struct connection *c, const char *error, const char *message)
{
    static struct json j;
    json_start(&j);
    json_raw(&j, "{");
    json_pair_bool(&j, "ok", false);
    json_pair_string(&j, "error", error);
    json_pair_string(&j, "message", message);
    json_raw(&j, "}");
    send_json(c, &j);
}

static void on_status(struct session *s, struct connection *c)
{
    static struct json j;
    json_start(&j);
    json_raw(&j, "{");
    json_pair_bool(&j, "ok", true);
    json_pair_number(&j, "version", PROTOCOL_VERSION);
    json_pair_number(&j, "hold_pid", getpid());
    json_pair_number(&j, "keeper_pid", s->started.keeper);
    json_pair_number(&j, "command_pid", s->started.command);
    json_pair_string(&j, "tty", s->started.tty);
    json_pair_string(&j, "nonce", nonce_text());
    json_pair_bool(&j, "started", s->began);
    json_pair_bool(&j, "namespace", s->namespaced);
    json_pair_bool(&j, "movable", s->options.movable);
    json_pair_bool(&j, "lingering", s->lingering);
    json_pair_bool(&j, "frozen", s->frozen != 0);
    unstopped_write(&j, &s->unstopped);
    json_pair_bool(&j, "expired", s->expired);
    json_pair_number(&j, "deadline_ns", s->armed ? (long long)s->deadline_boot_ns : 0);
    json_pair_number(&j, "boottime_ns", (long long)clock_ns(CLOCK_BOOTTIME));
    json_pair_bool(&j, "exited", s->exited);
    if (s->exited && WIFEXITED(s->status))
        json_pair_number(&j, "code", WEXITSTATUS(s->status));
    else
        json_pair_null(&j, "code");
    if (s->exited && WIFSIGNALED(s->status))
        json_pair_number(&j, "signal", WTERMSIG(s->status));
    else
        json_pair_null(&j, "signal");
    if (s->exited)
        json_pair_string(&j, "by", session_ended_by(s));
    else
        json_pair_null(&j, "by");
    json_raw(&j, "}");
    send_json(c, &j);
    explicit_bzero(j.text, j.length);   /* the nonce: a keeper forked later must not have it */
}

static void answer_cannot_start(struct connection *c, const struct failure *f)
{
    static struct json j;
    json_start(&j);
    json_raw(&j, "{");
    json_pair_bool(&j, "ok", false);
    json_pair_string(&j, "error", "cannot_start");
    json_pair_string(&j, "message", f->text);
    json_pair_number(&j, "code", f->code);
    json_raw(&j, "}");
    send_json(c, &j);
}

static bool may_begin(const struct session *s, struct connection *c)
{
    if (s->began)
        answer_error(c, "started", "the command was started before; ask status how it is");
    else if (s->leaving)
        answer_error(c, "ending", "hold is on its way out; nothing can be started");
    else if (session_past_deadline(s))
        answer_error(c, "expired", "the deadline has passed; set a later one first");
    else
        return true;
    return false;
}

static void on_start(struct session *s, struct connection *c)
{
    if (!may_begin(s, c))
        return;
    if (session_start(s))
        answer_ok(c);
    else
        answer_cannot_start(c, &s->failure);
}

static void on_freeze(struct session *s, struct connection *c)
{
    static struct json j;
    struct freeze_result r = {0};
    if (s->ending && !s->exited) {
        answer_error(c, "ending", "the session is being ended; wait for it");
        return;
    }
    fence_down(s, FROZEN_BY_REQUEST, &r);
    json_start(&j);
    json_raw(&j, "{");
    json_pair_bool(&j, "ok", r.unstopped.count == 0);
    if (r.unstopped.count) {
        json_pair_string(&j, "error", "incomplete");
        json_pair_string(&j, "message", "some processes could not be stopped; hold goes on trying");
        json_pair_number(&j, "running", r.running);
    }
    unstopped_write(&j, &r.unstopped);
    json_pair_number(&j, "stopped", r.stopped);
    json_pair_number(&j, "refused", r.refused);
    json_pair_number(&j, "milliseconds", r.milliseconds);
    json_raw(&j, "}");
    send_json(c, &j);
}

static void on_thaw(struct session *s, struct connection *c)
{
    if (s->expired) {
        answer_error(c, "expired", "the deadline has passed; set a later one first");
        return;
    }
    session_thaw(s);
    answer_ok(c);
}

static void on_collected(struct session *s, struct connection *c)
{
    if (!s->exited) {
        answer_error(c, "running", "the command has not ended; wait for its exited event");
        return;
    }
    s->collected = true;
    answer_ok(c);
}

/* The file in which jobs are asked for, and told of: the keeper's, which alone acts on it. */
static void on_jobs(struct session *s, struct connection *c)
{
    if (s->started.jobs < 0)
        s->started.jobs = jobs_find(s->started.keeper);     /* it may not have been ready then */
    if (s->started.jobs < 0)
        answer_error(c, "no_jobs", "this session's keeper runs no jobs; it was begun by an older hold");
    else
        connection_send(c, "{\"ok\":true}", strlen("{\"ok\":true}"), s->started.jobs);
}

static void on_nudge(struct session *s, struct connection *c)
{
    if (!s->exited)
        kill(s->started.keeper, SIGUSR1);
    answer_ok(c);
}

static void on_heed(struct session *s, struct connection *c)
{
    session_heed(s);
    answer_ok(c);
}

static bool read_number(const char *word, uint64_t *value)
{
    if (!isdigit((unsigned char)word[0]) || strspn(word, "0123456789") != strlen(word))
        return false;
    errno = 0;
    *value = strtoull(word, NULL, 10);
    /* Half the range: a JSON reader keeps it exact, and sums of it stay in bounds. */
    return errno == 0 && *value <= INT64_MAX;
}

static int signal_number(const char *word)
{
    uint64_t number;
    if (read_number(word, &number))
        return number >= 1 && number < NSIG ? (int)number : -1;
    if (strncmp(word, "SIG", 3) == 0)
        word += 3;
    for (int i = 1; i < NSIG; i++) {
        const char *name = sigabbrev_np(i);
        if (name && strcmp(name, word) == 0)
            return i;
    }
    return -1;
}

static void on_signal(struct session *s, struct connection *c, const char *word)
{
    int number = signal_number(word);
    if (number < 0) {
        answer_error(c, "bad_request", "no such signal; give a name such as INT or a number");
        return;
    }
    /* A continued process would run behind a freeze, and past a deadline behind the fence. */
    if (s->frozen && number == SIGCONT) {
        answer_error(c, "frozen", "the session is frozen; thaw it instead");
        return;
    }
    if (!s->began) {
        answer_error(c, "not_started", NOT_STARTED);
        return;
    }
    pid_t group = tcgetpgrp(s->started.master);
    if (group <= 1 || kill(-group, number) < 0) {
        answer_error(c, "no_foreground", "no foreground process could be signalled");
        return;
    }
    answer_ok(c);
}

static void on_graph(struct session *s, struct connection *c, bool foreground_only)
{
    connection_start_graph(c, graph_new(&s->started, foreground_only, s->exited));
}

static void on_end(struct session *s, struct connection *c, uint64_t grace_ms)
{
    if (!s->began)
        s->leaving = true;
    else if (!s->exited)
        session_end(s, grace_ms, BY_END);
    answer_ok(c);
}

/* For the node's agent, whose checkpoint tool works in the namespace. It ends with the connection. */
static void on_spare(struct connection *c, uint64_t pid)
{
    if (pid > INT32_MAX || !connection_spare(c, (pid_t)pid)) {
        answer_error(c, "bad_request", "give the pid of a process that entered from outside, and "
                     "one for a connection");
        return;
    }
    freeze_release((pid_t)pid);
    answer_ok(c);
}

static bool with_argument(struct session *s, struct connection *c, const char *verb, const char *word)
{
    uint64_t number;
    unsigned short columns, rows;
    if (strcmp(verb, "signal") == 0) {
        on_signal(s, c, word);
    } else if (strcmp(verb, "deadline") == 0 && read_number(word, &number)) {
        session_set_deadline(s, number);
        answer_ok(c);
    } else if (strcmp(verb, "end") == 0 && read_number(word, &number) && number <= GRACE_MAX_MS) {
        on_end(s, c, number);
    } else if (strcmp(verb, "spare") == 0 && read_number(word, &number)) {
        on_spare(c, number);
    } else if (strcmp(verb, "start") == 0 && read_size(word, &columns, &rows)) {
        s->options.columns = columns;
        s->options.rows = rows;
        on_start(s, c);
    } else {
        return false;
    }
    return true;
}

static bool read_pid(const char *word, pid_t *pid)
{
    uint64_t number;
    if (!word || !read_number(word, &number) || number < 1 || number > INT32_MAX)
        return false;
    *pid = (pid_t)number;
    return true;
}

static bool on_adopt(struct session *s, struct connection *c, char *words, int *passed)
{
    struct adoption a = {.master = *passed};
    if (!read_pid(strsep(&words, " "), &a.keeper) || !read_pid(strsep(&words, " "), &a.command) ||
        !words || strncmp(words, "/dev/", 5) != 0 || strchr(words, ' '))
        return false;
    a.tty = words;
    if (!may_begin(s, c))
        return true;
    const char *why = session_adopt(s, &a);
    if (why) {
        answer_error(c, "cannot_adopt", why);
        return true;
    }
    *passed = PASSED_NONE;
    answer_ok(c);
    return true;
}

static bool needs_the_tree(const char *verb)
{
    static const char *const verbs[] = {"master", "outbox",     "freeze",   "thaw",
                                        "graph",  "foreground", "collected", "heed",
                                        "jobs",   "nudge"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(verb, verbs[i]) == 0)
            return true;
    return false;
}

static bool without_argument(struct session *s, struct connection *c, const char *verb)
{
    if (strcmp(verb, "status") == 0)
        on_status(s, c);
    else if (strcmp(verb, "start") == 0)
        on_start(s, c);
    else if (!s->began && needs_the_tree(verb))
        answer_error(c, "not_started", NOT_STARTED);
    else if (strcmp(verb, "master") == 0)
        connection_send(c, "{\"ok\":true}", strlen("{\"ok\":true}"), s->started.master);
    else if (strcmp(verb, "outbox") == 0)
        connection_send(c, "{\"ok\":true}", strlen("{\"ok\":true}"), s->outbox);
    else if (strcmp(verb, "freeze") == 0)
        on_freeze(s, c);
    else if (strcmp(verb, "thaw") == 0)
        on_thaw(s, c);
    else if (strcmp(verb, "graph") == 0)
        on_graph(s, c, false);
    else if (strcmp(verb, "foreground") == 0)
        on_graph(s, c, true);
    else if (strcmp(verb, "collected") == 0)
        on_collected(s, c);
    else if (strcmp(verb, "heed") == 0)
        on_heed(s, c);
    else if (strcmp(verb, "jobs") == 0)
        on_jobs(s, c);
    else if (strcmp(verb, "nudge") == 0)
        on_nudge(s, c);
    else
        return false;
    return true;
}

/* text has room for one byte more than length. */
void request_handle(struct session *s, struct connection *c, char *text, size_t length,
                    int *passed)
{
    bool plain = length <= REQUEST_MAX;
    for (size_t i = 0; i < length && plain; i++)
        plain = isprint((unsigned char)text[i]);
    text[length] = '\0';
    char *rest = text;
    char *verb = plain ? strsep(&rest, " ") : NULL;
    bool done = false;
    if (verb && rest && strcmp(verb, "adopt") == 0)
        done = on_adopt(s, c, rest, passed);
    else if (verb && rest && !strchr(rest, ' '))
        done = with_argument(s, c, verb, rest);
    else if (verb && !rest)
        done = without_argument(s, c, verb);
    if (!done)
        answer_error(c, "bad_request",
                     "ask: status, start COLSxROWS, master, freeze, thaw, deadline NS, graph, "
                     "foreground, end MS, heed, signal NAME, outbox, jobs, nudge, collected, "
                     "adopt KEEPER COMMAND TTY, spare PID");
}
