"""What a process would get when its parent dies. Only it can ask, so it is made to: stopped by
ptrace, it runs one prctl(PR_GET_PDEATHSIG) and goes on where it was. x86_64 alone."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time

import pytest

needs_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86_64")

_GETREGS, _SETREGS, _PEEK, _STEP, _GO_ON, _DETACH, _SEIZE, _INTERRUPT = (
    12, 13, 2, 9, 7, 17, 0x4206, 0x4207,
)  # fmt: skip
_WALL = 0x40000000
_REGISTERS = struct.Struct("=27Q")
_RAX, _RSI, _RDI, _ORIG_RAX, _RIP, _RSP = 10, 13, 14, 15, 16, 19
_PRCTL, _GET_PDEATHSIG = 157, 2
_SYSCALL = 0x050F  # the instruction, as it is read from memory
_RED_ZONE = 4096  # below the stack pointer, and far from what the process itself uses there


def death_signal(pid: int) -> int:
    """Of a process that waits in a system call."""
    _ptrace(_SEIZE, pid)
    try:
        before = _stopped(pid)
        registers = list(_REGISTERS.unpack(before.raw))
        answer = registers[_RSP] - _RED_ZONE
        registers[_RAX], registers[_RDI], registers[_RSI] = _PRCTL, _GET_PDEATHSIG, answer
        registers[_ORIG_RAX] = 2**64 - 1  # or the kernel would start the old call again
        registers[_RIP] -= 2  # back to the instruction it waits in: syscall
        changed = ctypes.create_string_buffer(_REGISTERS.pack(*registers))
        _ptrace(_SETREGS, pid, changed)
        _ptrace(_STEP, pid)
        os.waitpid(pid, _WALL)
        after = ctypes.create_string_buffer(_REGISTERS.size)
        _ptrace(_GETREGS, pid, after)
        assert _REGISTERS.unpack(after.raw)[_RAX] == 0
        told = _word(pid, answer)
        _ptrace(_SETREGS, pid, before)
        return told & 0xFFFFFFFF
    finally:
        _ptrace(_DETACH, pid)


def _stopped(pid: int) -> ctypes.Array[ctypes.c_char]:
    """Its registers, when it is stopped in a system call: one that was just started is not in one
    yet."""
    found = ctypes.create_string_buffer(_REGISTERS.size)
    for _ in range(1000):
        _ptrace(_INTERRUPT, pid)
        os.waitpid(pid, _WALL)
        _ptrace(_GETREGS, pid, found)
        if _word(pid, _REGISTERS.unpack(found.raw)[_RIP] - 2) & 0xFFFF == _SYSCALL:
            return found
        _ptrace(_GO_ON, pid)
        time.sleep(0.01)
    raise AssertionError(f"process {pid} never waits in a system call")


def _word(pid: int, address: int) -> int:
    word = ctypes.c_long()
    _ptrace(_PEEK, pid, ctypes.byref(word), address)
    return word.value


def _ptrace(request: int, pid: int, data: object = None, address: int = 0) -> None:
    call = ctypes.CDLL(None, use_errno=True).syscall
    done = call(ctypes.c_long(101), ctypes.c_long(request), ctypes.c_long(pid),
                ctypes.c_void_p(address), data)  # fmt: skip
    if done < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")
