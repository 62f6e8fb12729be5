/* The process graph: what runs, what it holds open, what it listens on, what it waits for. */
#ifndef HOLD_GRAPH_H
#define HOLD_GRAPH_H

#include <stdbool.h>
#include <sys/types.h>

#include "hold.h"
#include "json.h"
#include "tree.h"

struct graph_job;

/* The tree as it is now; details are read as the packets are asked for. `everyone`: with what
 * entered the namespace from outside, once the command has ended and all of that is to go. */
struct graph_job *graph_new(const struct started *s, bool foreground_only, bool everyone);
bool graph_next(struct graph_job *job, struct json *packet);    /* true: that was the last one */
void graph_free(struct graph_job *job);

/* waits.c: the "threads" member, for a process that is in the foreground. */
void waits_write(struct json *j, pid_t pid);

/* listeners.c: which socket inodes of a network namespace listen, and where. */
struct listener {
    unsigned long inode;
    bool unix_domain;
    char address[112];              /* an IP address, or a socket's path */
    unsigned port;
};
struct listeners {
    struct listener *list;
    size_t count, room;
    unsigned long netns;            /* of which these are; 0: none read yet */
};
void listeners_of(struct listeners *l, pid_t pid);
const struct listener *listeners_find(const struct listeners *l, unsigned long inode);
void listeners_free(struct listeners *l);

#endif
