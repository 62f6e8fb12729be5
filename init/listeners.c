#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "graph.h"

/* A machine with more listening sockets than this shows the first ones. */
#define LISTENERS_MAX 4096

static struct listener *add(struct listeners *l)
{
    if (l->count == LISTENERS_MAX)
        return NULL;
    if (l->count == l->room) {
        l->room = l->room ? l->room * 2 : 64;
        l->list = must_realloc(l->list, l->room * sizeof *l->list);
    }
    struct listener *new = &l->list[l->count++];
    memset(new, 0, sizeof *new);
    return new;
}

/* Addresses are printed as 32-bit words in the machine's own byte order. */
static void format_address(char *out, size_t room, const char *hex)
{
    unsigned word[4] = {0};
    size_t words = strlen(hex) / 8;
    for (size_t i = 0; i < words && i < 4; i++)
        sscanf(hex + 8 * i, "%8x", &word[i]);
    if (!inet_ntop(words == 4 ? AF_INET6 : AF_INET, word, out, (socklen_t)room))
        out[0] = '\0';
}

static void read_tcp(struct listeners *l, pid_t pid, const char *file)
{
    char path[64], line[512], address[40];
    unsigned port, state;
    unsigned long inode;
    snprintf(path, sizeof path, "/proc/%d/net/%s", pid, file);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        const unsigned listen_state = 0x0a;
        if (sscanf(line, " %*d: %39[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*u %*d %lu",
                   address, &port, &state, &inode) != 4 || state != listen_state)
            continue;
        struct listener *new = add(l);
        if (!new)
            break;
        new->inode = inode;
        new->port = port;
        format_address(new->address, sizeof new->address, address);
    }
    if (f)
        fclose(f);
}

static void read_unix(struct listeners *l, pid_t pid)
{
    char path[64], line[512];
    unsigned flags;
    unsigned long inode;
    int at;
    snprintf(path, sizeof path, "/proc/%d/net/unix", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        const unsigned accepts = 0x10000;   /* __SO_ACCEPTCON */
        at = 0;
        if (sscanf(line, "%*s %*x %*x %x %*x %*x %lu %n", &flags, &inode, &at) != 2 ||
            !(flags & accepts))
            continue;
        struct listener *new = add(l);
        if (!new)
            break;
        new->inode = inode;
        new->unix_domain = true;
        line[strcspn(line, "\n")] = '\0';
        snprintf(new->address, sizeof new->address, "%.*s", (int)sizeof new->address - 1,
                 at ? line + at : "");
    }
    if (f)
        fclose(f);
}

static int by_inode(const void *a, const void *b)
{
    unsigned long x = ((const struct listener *)a)->inode, y = ((const struct listener *)b)->inode;
    return x < y ? -1 : x > y;
}

/* Nearly always all of a session shares one network namespace: read its tables once. */
void listeners_of(struct listeners *l, pid_t pid)
{
    char path[64];
    struct stat ns;
    snprintf(path, sizeof path, "/proc/%d/ns/net", pid);
    if (stat(path, &ns) < 0 || (l->netns == ns.st_ino && l->netns))
        return;
    l->netns = ns.st_ino;
    l->count = 0;
    read_tcp(l, pid, "tcp");
    read_tcp(l, pid, "tcp6");
    read_unix(l, pid);
    if (l->count)
        qsort(l->list, l->count, sizeof *l->list, by_inode);
}

const struct listener *listeners_find(const struct listeners *l, unsigned long inode)
{
    struct listener key = {.inode = inode};
    return l->count ? bsearch(&key, l->list, l->count, sizeof key, by_inode) : NULL;
}

void listeners_free(struct listeners *l)
{
    free(l->list);
    *l = (struct listeners){0};
}
