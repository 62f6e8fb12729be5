/* --movable: what a checkpoint refuses is not there for the session, so that programs fall back to
 * what can be moved: io_uring_*() does not exist, and MPTCP is a protocol the kernel does not know.
 *
 * This is help, not a fence: a program that gets by makes the move fail, and nothing worse. The one
 * way by is a 32-bit x86 program's socketcall(), whose arguments a filter cannot see; to refuse
 * that would leave such programs without sockets.
 *
 * Before the arguments of socket() only the number and the architecture are looked at: then the
 * kernel knows in advance which calls always pass, and runs no filter for them. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "hold.h"

#define SAME_NUMBER 0xffffffffu
#if defined(__x86_64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE AUDIT_ARCH_X86_64
#define COMPAT AUDIT_ARCH_I386
#define COMPAT_SOCKET 359
#define NUMBER_MASK (SAME_NUMBER & ~0x40000000u)    /* x32 has the same numbers with this bit */
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE AUDIT_ARCH_AARCH64
#define COMPAT AUDIT_ARCH_ARM
#define COMPAT_SOCKET 281
#define NUMBER_MASK SAME_NUMBER
#endif

#ifndef NATIVE

bool filter_possible(void)
{
    return false;
}

int filter_install(void)
{
    return ENOSYS;
}

#else

/* The same on every architecture. */
#define IO_URING_FIRST 425
#define IO_URING_LAST 427
#define MPTCP 262

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, action)
/* From the row `at` to the row `yes` or `no`. */
#define JUMP(at, how, value, yes, no) \
    BPF_JUMP(BPF_JMP | (how) | BPF_K, value, (yes) - (at) - 1, (no) - (at) - 1)

enum { OURS = 3, OTHERS = 6, RING = 8, SOCKET = 11, PROTOCOL = 14, REFUSE = 16, PASS = 17 };

/* The kernel takes socket()'s arguments as int: the low halves, which come first. */
static struct sock_filter program[] = {
    [0] = LOAD(arch),
    [1] = JUMP(1, BPF_JEQ, NATIVE, OURS, 2),
    [2] = JUMP(2, BPF_JEQ, COMPAT, OTHERS, PASS),
    [OURS] = LOAD(nr),
    [4] = BPF_STMT(BPF_ALU | BPF_AND | BPF_K, NUMBER_MASK),
    [5] = JUMP(5, BPF_JEQ, SYS_socket, SOCKET, RING),
    [OTHERS] = LOAD(nr),
    [7] = JUMP(7, BPF_JEQ, COMPAT_SOCKET, SOCKET, RING),
    [RING] = JUMP(RING, BPF_JGE, IO_URING_FIRST, 9, PASS),
    [9] = JUMP(9, BPF_JGT, IO_URING_LAST, PASS, 10),
    [10] = ANSWER(SECCOMP_RET_ERRNO | ENOSYS),
    [SOCKET] = LOAD(args[0]),
    [12] = JUMP(12, BPF_JEQ, AF_INET, PROTOCOL, 13),
    [13] = JUMP(13, BPF_JEQ, AF_INET6, PROTOCOL, PASS),
    [PROTOCOL] = LOAD(args[2]),
    [15] = JUMP(15, BPF_JEQ, MPTCP, REFUSE, PASS),
    [REFUSE] = ANSWER(SECCOMP_RET_ERRNO | EPROTONOSUPPORT),
    [PASS] = ANSWER(SECCOMP_RET_ALLOW),
};

bool filter_possible(void)
{
    return true;
}

int filter_install(void)
{
    struct sock_fprog whole = {.len = sizeof program / sizeof *program, .filter = program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) < 0)
        return errno;
    return 0;
}

#endif
