"""Programs that cannot be moved, each with something else that CRIU refuses. They say `up` when
they have it (`refused` if the kernel does not let them), and end when a line comes."""

from __future__ import annotations

import platform
from typing import Final

TOOLS: Final = """
import ctypes, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4

def call(number, *arguments):
    got = libc.syscall(ctypes.c_long(number), *arguments)
    if got < 0:
        print("refused", ctypes.get_errno(), flush=True)
    return got

def trace():
    child = os.fork()
    if child == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        libc.prctl(15, b"patient", 0, 0, 0)
        time.sleep(1000)
    if libc.ptrace(0x4206, child, 0, 0) < 0:  # PTRACE_SEIZE, which stops nothing
        print("refused", ctypes.get_errno(), flush=True)
    return child
"""
_WAIT: Final = """
print("up", flush=True)
input()
"""
USERFAULTFD_CALL: Final = 323 if platform.machine() == "x86_64" else 282

RING: Final = TOOLS + "call(425, 4, ctypes.create_string_buffer(120))" + _WAIT
USERFAULTFD: Final = TOOLS + f"call({USERFAULTFD_CALL}, 1)" + _WAIT
TRACER: Final = TOOLS + "trace()" + _WAIT
VSOCK: Final = f"""{TOOLS}
try:
    held = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
except OSError as error:
    print("refused", error.errno, flush=True)
{_WAIT}"""
# None of these is in the way of a move.
HARMLESS: Final = f"""{TOOLS}
import select
held = [open("/dev/" + name) for name in ("null", "zero", "full", "urandom", "tty")]
held += [select.epoll(), os.eventfd(0), os.pidfd_open(os.getpid()), socket.socket(),
         socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), *socket.socketpair(), *os.openpty(),
         os.memfd_create("x"), libc.inotify_init()]
{_WAIT}"""
