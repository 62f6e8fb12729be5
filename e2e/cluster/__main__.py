"""`python -m e2e.cluster`: up, down, status, build."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster import build, control, kind, nodes, pki, processes
from e2e.cluster.places import KUBECONFIG, NODES, STATE
from e2e.cluster.say import ClusterError, say, timed

_JOIN_SECONDS = 90.0


def up(tied_to: int | None = None) -> None:
    """`tied_to`: the process with which the cluster ends, however that ends."""
    if kind.engine():
        kind.up()
        return
    _require_root()
    if STATE.exists():
        say("removing what an earlier cluster left")
        down()
    programs, root, images = build.everything()
    started = time.monotonic()
    STATE.mkdir(parents=True)
    if tied_to is not None:
        _tie(tied_to)
    pki.make()
    folder = STATE / "images"
    folder.mkdir()
    for archive in images:
        (folder / archive.name).hardlink_to(archive)
    nodes.network_up()
    # The nodes start while the control plane does: both take seconds, and neither needs the other
    # to begin.
    for node in NODES:
        nodes.start(node, programs, root, folder)
    control.start(programs)
    control.install_dns(programs)
    _await_nodes(programs)
    seconds = time.monotonic() - started
    (STATE / "up_seconds").write_text(f"{seconds:.1f}")
    say(f"ready in {seconds:.1f} s; export KUBECONFIG={KUBECONFIG}")


def _await_nodes(programs: Path) -> None:
    patience = f"--timeout={_JOIN_SECONDS:.0f}s"
    give_up = time.monotonic() + _JOIN_SECONDS
    while set(control.kubectl(programs, "get", "nodes", "-o", "name").split()) != {
        f"node/{node}" for node in NODES
    }:
        if time.monotonic() > give_up:
            raise ClusterError(f"the nodes do not join; their logs are in {STATE}/log")
        time.sleep(0.2)
    control.kubectl(programs, "wait", "--for=condition=Ready", patience, "node", "--all")
    control.kubectl(
        programs, "rollout", "status", patience, "-n", "kube-system", "deployment/coredns"
    )


def down() -> None:
    if kind.engine():
        kind.down()
        return
    _require_root()
    for node in NODES:
        nodes.stop(node)
    control.stop()
    nodes.remove_all()
    shutil.rmtree(STATE, ignore_errors=True)


def _tie(pid: int) -> None:
    """A process of its own waits for the other's end; nothing that ends a test run reaches it."""
    subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster", "guard", str(pid)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def guard(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        select.select([handle], [], [])
    down()


def status() -> None:
    for name in processes.names():
        pid = processes.pid_of(name)
        print(f"{name}: {'gone' if pid is None else f'pid {pid}'}")


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("a cluster of namespaces needs root; run it with sudo")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "status", "build", "guard"])
    parser.add_argument("pid", nargs="?", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        match given.verb:
            case "up":
                up(given.pid)
            case "down":
                with timed("down"):
                    down()
            case "status":
                status()
            case "build":
                build.everything()
            case "guard":
                guard(given.pid)
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
