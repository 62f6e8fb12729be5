"""CRIU works in hold's PID namespace, and must be able to finish in a frozen session."""

from __future__ import annotations

import os
import socket
import threading

from holdfast_node.inside import spare

EVENT = b'{"event":"frozen","by":"deadline"}'


def test_hold_is_asked_by_the_number_that_it_knows() -> None:
    ours, hold = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, hold:
        hold.settimeout(10)
        asking = threading.Thread(target=spare, args=(ours.fileno(), os.getpid()))
        asking.start()
        assert hold.recv(100) == f"spare {os.getpid()}".encode()
        hold.send(EVENT)
        assert asking.is_alive(), "an event is no answer"
        hold.send(b'{"ok":true}')
        asking.join(10)
        assert not asking.is_alive()


def test_what_is_not_hold_keeps_nobody_waiting() -> None:
    """attack 33: the session may listen in hold's place."""
    ours, impostor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, impostor:
        for _ in range(100):
            impostor.send(EVENT)
        spare(ours.fileno(), os.getpid())
        impostor.close()
        spare(ours.fileno(), os.getpid())
