"""A sidecar that is told to go while it is still being loaded goes at once."""

from __future__ import annotations

import signal
import subprocess
import sys

LOADS_FOR_EVER = """
import os, signal, sys, time
from holdfast_sidecar import entry
assert "holdfast_sidecar.pod" not in sys.modules

class Slow:
    def find_spec(self, name, *_):
        if name == "holdfast_sidecar.pod":
            print("loading", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
entry.main()
"""


def test_terminated_while_it_is_loaded() -> None:
    command = [sys.executable, "-c", LOADS_FOR_EVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        # Not by the signal itself, which PID 1 of a container would not hear.
        assert process.wait(10) == 128 + signal.SIGTERM
