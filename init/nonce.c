/* 64 random bits. The keeper is a fork of hold which the session can look into, so it forgets
 * them, and packets that name them are wiped as they are freed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "hold.h"

static char text[17];

void nonce_make(void)
{
    unsigned char raw[8];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        die(1, "cannot get random bytes: %s; this needs a Linux kernel", strerror(errno));
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(text + 2 * i, 3, "%02x", raw[i]);
    explicit_bzero(raw, sizeof raw);
}

const char *nonce_text(void)
{
    return text;
}

/* What calls that have returned left on the stack: copying a packet takes it through vector
 * registers, which the dynamic linker and signal frames put there as they are. */
static __attribute__((noinline, no_sanitize("address"))) void wipe_dead_stack(void)
{
    char room[64 << 10];
    explicit_bzero(room, sizeof room);
}

void nonce_forget(void)
{
    explicit_bzero(text, sizeof text);
    wipe_dead_stack();
}
