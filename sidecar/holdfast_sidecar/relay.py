"""`holdfast-relay`: bytes between standard input and output and the sidecar's socket.

What `kubectl exec` runs in the sidecar's container to reach the session. It understands nothing of
what it carries. The end of the input is passed on; the sidecar's end is the end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Final

_BLOCK: Final = 64 << 10
_TRY_AGAIN: Final = 75  # EX_TEMPFAIL of sysexits.h


def relay(sidecar: socket.socket, source: int, sink: int) -> None:
    """Each direction has a thread: neither waits for the other's reader."""
    threading.Thread(target=_inwards, args=(source, sidecar), daemon=True).start()
    with contextlib.suppress(OSError):  # either side went away
        while data := sidecar.recv(_BLOCK):
            _write(sink, data)


def _inwards(source: int, sidecar: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(source, _BLOCK):
            sidecar.sendall(data)
    with contextlib.suppress(OSError):
        sidecar.shutdown(socket.SHUT_WR)


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def main() -> int:
    path = Path(os.environ.get("HOLDFAST_STATE", "/var/lib/holdfast")) / "sidecar.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sidecar:
        try:
            sidecar.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            print("the session is not being served (yet); try again", file=sys.stderr)
            return _TRY_AGAIN
        except OSError as error:
            print(f"the session cannot be reached: {error}", file=sys.stderr)
            return _TRY_AGAIN
        relay(sidecar, 0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
