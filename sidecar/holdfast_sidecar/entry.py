"""`holdfast-sidecar`. As PID 1 of its container it hears no signal that it has no handler for, and
importing the rest takes a moment: a SIGTERM of kubelet's in that moment would be lost, and the pod
would take its whole grace period to go."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

_TERMINATED: Final = 128 + signal.SIGTERM


def _go(_number: int, _frame: FrameType | None) -> None:
    os._exit(_TERMINATED)  # nothing has begun


def main() -> int:
    signal.signal(signal.SIGTERM, _go)
    from holdfast_sidecar import pod

    return pod.main()


if __name__ == "__main__":
    sys.exit(main())
