/* The fence: everything that hold guards is stopped, and kept so.
 *
 * A stopped process stays so until somebody sends it SIGCONT, and who is not in the namespace, or
 * may not be signalled, can do that at any time; kubectl exec brings in new ones. So hold looks
 * again: soon after it found something to do, then less often. In between it asks for the newest
 * PID, which costs one read and tells of every process that came meanwhile. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "freeze.h"
#include "hold.h"
#include "json.h"
#include "tree.h"

#define MS 1000000ull

#define LOOK_LEAST_MS 20u
#define LOOK_MOST_MS 200u
/* A look at very many processes takes long: at most a twentieth of the time is spent looking. */
#define LOOK_SHARE 20u
#define NEWCOMERS_MS 50u

static void announce_frozen(const char *by)
{
    char text[64];
    snprintf(text, sizeof text, "{\"event\":\"frozen\",\"by\":\"%s\"}", by);
    control_event(text);
}

void unstopped_write(struct json *j, const struct unstopped *u)
{
    json_pair_number(j, "incomplete", u->count);
    json_key(j, "unstopped");
    json_raw(j, "[");
    for (int i = 0; i < u->count && i < UNSTOPPED_MAX; i++) {
        json_comma(j);
        json_number(j, u->pids[i]);
    }
    json_raw(j, "]");
}

static bool same(const struct unstopped *a, const struct unstopped *b)
{
    int listed = a->count < UNSTOPPED_MAX ? a->count : UNSTOPPED_MAX;
    return a->count == b->count && memcmp(a->pids, b->pids, (size_t)listed * sizeof *a->pids) == 0;
}

/* Before anybody hears `frozen`, so that nobody takes it for more than it is. */
static void note_unstopped(struct session *s, const struct unstopped *now)
{
    static struct json j;
    if (same(now, &s->unstopped))
        return;
    s->unstopped = *now;
    json_start(&j);
    json_raw(&j, "{");
    json_pair_string(&j, "event", "incomplete");
    unstopped_write(&j, now);
    json_raw(&j, "}");
    j.text[j.length] = '\0';
    control_event(j.text);
}

static void look_again(struct session *s, uint64_t began, bool found)
{
    struct fence_watch *w = &s->watch;
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    w->quiet_ms = found || !w->quiet_ms ? LOOK_LEAST_MS : w->quiet_ms * 2;
    if (w->quiet_ms > LOOK_MOST_MS)
        w->quiet_ms = LOOK_MOST_MS;
    uint64_t pause = (now - began) * LOOK_SHARE;
    if (pause < w->quiet_ms * MS)
        pause = w->quiet_ms * MS;
    w->look_at_ns = now + pause;
    w->newcomers_at_ns = now + NEWCOMERS_MS * MS;
}

static void stop_all(struct session *s, struct freeze_result *result)
{
    s->watch.newest = newest_pid();
    freeze_tree(getpid(), result);
    note_unstopped(s, &result->unstopped);
}

void fence_down(struct session *s, unsigned by, struct freeze_result *result)
{
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    bool news = s->frozen == 0;
    stop_all(s, result);
    s->frozen |= by;
    s->watch.quiet_ms = 0;
    look_again(s, began, true);
    if (news)
        announce_frozen(by == FROZEN_BY_DEADLINE ? "deadline" : "request");
}

void fence_forget(struct session *s)
{
    s->frozen = 0;
    s->unstopped.count = 0;
    freeze_forget();
}

void session_thaw(struct session *s)
{
    if (s->expired || s->frozen == 0)
        return;
    thaw_tree(getpid());
    fence_forget(s);
    control_event("{\"event\":\"thawed\"}");
}

uint64_t fence_patience_ms(const struct session *s)
{
    uint64_t now = clock_ns(CLOCK_MONOTONIC), at = s->watch.look_at_ns;
    if (s->watch.newcomers_at_ns < at)
        at = s->watch.newcomers_at_ns;
    return (at > now ? at - now : 0) / MS + 1;
}

/* By the clock, not when the loop is idle: what still runs could keep it busy. */
void fence_watch(struct session *s)
{
    struct freeze_result result = {0};
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    bool due = began >= s->watch.look_at_ns;
    if (!due && began < s->watch.newcomers_at_ns)
        return;
    s->watch.newcomers_at_ns = began + NEWCOMERS_MS * MS;
    pid_t newest = newest_pid();
    if (!due && newest == s->watch.newest)
        return;
    s->watch.newest = newest;
    bool found = freeze_look(getpid(), &result);
    if (found)
        stop_all(s, &result);
    else
        note_unstopped(s, &result.unstopped);
    look_again(s, began, found);
}
