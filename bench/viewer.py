"""`python -m bench.viewer`: one viewer in a process of its own. Says so when it is attached, and
when it has seen the marker; the monotonic clock is the same in every process.

    viewer MARKER pty DESCRIPTOR
    viewer MARKER sidecar SOCKET
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.ends import End, FrameEnd, PtyEnd


def _end(kind: str, where: str) -> End:
    if kind == "sidecar":
        end = FrameEnd(Path(where), mode="view")
        end.whole_screen(b"\0")
        return end
    pty = PtyEnd(int(where))
    pty.receive()  # a client that has attached clears or paints its screen
    return pty


def main() -> None:
    marker, kind, where = sys.argv[1:]
    wanted = marker.encode()
    end = _end(kind, where)
    print("attached", flush=True)
    while not end.look(wanted):
        pass
    seen = time.monotonic_ns()
    print(json.dumps({"seen_ns": seen, "bytes": end.received, "gaps": end.gaps}), flush=True)
    # Goes on reading until it is ended, as a viewer does: others may not be done.
    while True:
        end.receive()


if __name__ == "__main__":
    main()
