"""The sidecar knows hold by what it gave it alone, before anything else ran (attack 33)."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from api_kit import Pod
from gateway_kit import listener_pid, until
from holdfast_sidecar.hold import HoldStatus
from holdfast_sidecar.nonce import FIFO

from .test_pod import COUNT, make_pod, pod

__all__ = ["make_pod", "pod"]


def test_an_impostor_that_was_there_first_is_not_believed(pod: Pod) -> None:
    """attack 33: somebody in the session's container listens at hold's socket before a sidecar has
    ever met hold. The sidecar knows hold by what it gave it itself."""
    pod.begin_hold("bash", "-c", COUNT)
    said: dict[str, Any] = dict.fromkeys(HoldStatus.__slots__, 0)
    impostor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with impostor:
        impostor.bind(str(pod.socket))
        impostor.listen()
        impostor.settimeout(10)
        pod.start_sidecar()
        wrong = {"ok": True, **said, "unstopped": [], "nonce": "f" * 32}
        while (peer := impostor.accept()[0]).recv(1000) != b"status":
            peer.close()  # hold itself looks whether somebody lives there
        with peer:
            peer.send(json.dumps(wrong).encode())
            assert peer.recv(1000) == b"status"
            peer.send(json.dumps(wrong).encode())
        pod.said("is not the hold that has this sidecar's nonce")
    assert pod.api.requests == []


def test_a_sidecar_hands_its_nonce_over_once(pod: Pod) -> None:
    """attack 33: not to whoever opens the FIFO later, and not again as another sidecar."""
    pod.begin_hold("cat")
    pod.start_sidecar()
    until(lambda: listener_pid(pod.socket, socket.SOCK_SEQPACKET), "hold's socket")
    given = (pod.state / "hold").read_text()
    until(lambda: pod.status()["nonce"] == given, "hold has it")
    assert not (pod.run / FIFO).exists()
    os.mkfifo(pod.run / FIFO)  # as the hook does when the sidecar's container is started again
    thief = os.open(pod.run / FIFO, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert pod.sidecar is not None
        pod.sidecar.kill()
        pod.sidecar_goes()
        pod.start_sidecar()
        until(lambda: not (pod.run / FIFO).exists(), "the FIFO is taken away")
        pod.note("started")
        assert os.read(thief, 100) == b""
    finally:
        os.close(thief)
