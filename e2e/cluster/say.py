"""Telling a person what is going on, and running the programs that do it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class ClusterError(Exception):
    """The message says what failed and where to look."""


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


def run(*command: str | Path, env: Mapping[str, str] | None = None, give: str | None = None) -> str:
    """The program's output; its complaint, if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        env=env,
        input=give,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise ClusterError(f"{' '.join(str(w) for w in command)[:200]} failed:\n{tail}")
    return done.stdout


def run_counting(
    what: str, command: Sequence[str | Path], log: Path, cwd: Path, env: Mapping[str, str]
) -> None:
    """A long one: says every ten seconds how far it is, by the lines it prints."""
    say(f"{what} …")
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=sink, stderr=sink, cwd=cwd, env=dict(env)
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=10)
                    break
                except subprocess.TimeoutExpired:
                    lines = log.read_bytes().count(b"\n")
                    say(f"{what}: {time.monotonic() - started:.0f} s, {lines} steps")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise ClusterError(f"{what} failed; its log is {log}:\n{tail}")
    say(f"{what}: done in {time.monotonic() - started:.0f} s")
