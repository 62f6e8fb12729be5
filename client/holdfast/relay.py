"""A sidecar in a cluster as a connected socket: `kubectl exec` with one end of a socket pair as its
standard input and output, and the sidecar's relay at its other end.

The socket can be written to at once; finding the pod and starting kubectl happen in a thread, so
that a terminal waiting for a slow cluster still hears its user. When the socket reaches its end,
`why` says why. Queue: what the kernel holds for a socket pair; a reader that stops reading stops
kubectl, and behind it the sidecar's outlet for this client, and nobody else.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.kube import RELAY, SIDECAR, Kubectl, drain, explain_exec
from holdfast_wire.errors import HoldfastError

# kubectl closes its ends and exits at once; its last words take no longer.
_WHY_SECONDS: Final = 1.0
_FINISH_SECONDS: Final = 1.0


class Pod(NamedTuple):
    namespace: str
    name: str


class Relay:
    def __init__(self, kubectl: Kubectl, find: Callable[[Kubectl], Pod]) -> None:
        """`find` runs in the thread; what it raises is for `why`."""
        self.socket, self._theirs = socket.socketpair()
        self._kubectl = Kubectl(kubectl.target)  # its own, so that `close` stops only that
        self._find = find
        self._error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._theirs:
            try:
                pod = self._find(self._kubectl)
                self._error = self._relay(pod)
            except HoldfastError as error:
                self._error = error

    def _relay(self, pod: Pod) -> HoldfastError:
        process = self._kubectl.start(
            "exec", "-i", f"--namespace={pod.namespace}", pod.name, "-c", SIDECAR, "--", RELAY,
            stdin=self._theirs, stdout=self._theirs,
        )  # fmt: skip
        self._theirs.close()  # else our own copy would keep the socket from reaching its end
        with process:
            said = drain(process.stderr)
            code = process.wait()
        return explain_exec(said, code, pod.name)

    def why(self) -> HoldfastError | None:
        """Once the socket has ended. None while kubectl runs, and nothing is known."""
        self._thread.join(_WHY_SECONDS)
        return None if self._thread.is_alive() else self._error

    def finish(self) -> None:
        """Let what was sent arrive: kubectl dies of a closed standard output, with what it has
        read and not passed on."""
        try:
            self.socket.settimeout(_FINISH_SECONDS)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            return

    def close(self) -> None:
        self.socket.close()
        self._kubectl.stop()
        self._thread.join(_WHY_SECONDS)
