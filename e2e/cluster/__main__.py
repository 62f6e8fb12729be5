"""`python -m e2e.cluster`: up, down, status, build, tools, leftovers."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time

from e2e.cluster import kind, processes
from e2e.cluster.leftovers import leftovers, mounted_below
from e2e.cluster.lock import alone
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.places import KUBECONFIG, NUMBER, REPOSITORY, STATE
from e2e.cluster.running import Cluster, record, running
from e2e.cluster.say import ClusterError, say, timed

# The process that a cluster ends with; a cluster that has none belongs to a person.
_OWNER = STATE / "owner"


def up(tied_to: int | None = None) -> None:
    """`tied_to`: the process with which the cluster ends, however that ends."""
    with alone():
        if STATE.exists() and _keep(tied_to):
            return
        cluster = _choose()
        _down()
        cluster.check()
        cluster.build()
        started = time.monotonic()
        record(cluster)
        if tied_to is not None:
            _tie(tied_to)
        cluster.start()
        seconds = time.monotonic() - started
        (STATE / "up_seconds").write_text(f"{seconds:.1f}")
    say(f"ready in {seconds:.1f} s; export KUBECONFIG={KUBECONFIG}")


def _choose() -> Cluster:
    engine = kind.engine()
    if engine is not None:
        return kind.Kind(engine)
    if os.environ.get("HOLDFAST_CLUSTER") == "kind":
        raise ClusterError("HOLDFAST_CLUSTER=kind, but neither Docker nor Podman answers")
    return Namespaces()


def _keep(tied_to: int | None) -> bool:
    """Whether the one that is up stays. A test run takes a new one; but never another run's."""
    owner = processes.remembered(_OWNER)
    if owner is not None and owner != tied_to:
        raise ClusterError(f"the cluster that is up is that of a test run, pid {owner}")
    if tied_to is None and running().healthy():
        say(f"already up (`make cluster-down` removes it); export KUBECONFIG={KUBECONFIG}")
        return True
    say("removing the cluster that was there")
    return False


def down() -> None:
    with alone():
        _down()


def _down() -> None:
    """Only what `STATE` records: without it there is nothing that is certainly ours."""
    if not STATE.exists():
        return
    if processes.pid_of("guard") != os.getpid():
        processes.stop("guard")
    running().stop()
    if mounted := mounted_below(STATE):
        raise ClusterError("not removed, something is mounted there: " + ", ".join(mounted))
    try:
        shutil.rmtree(STATE)
    except OSError as error:
        raise ClusterError(f"{STATE} cannot be removed: {error}") from error


def _tie(pid: int) -> None:
    """A process of its own waits for the other's end; nothing that ends a test run reaches it. It
    is handed a descriptor of that process: a number could be another's by the time it looks."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise ClusterError(f"no process {pid} to tie the cluster to") from error
    try:
        processes.remember(_OWNER, pid)
        # Its last word tells whose it is to those who look what is left of a cluster.
        command = [sys.executable, "-m", "e2e.cluster", "guard", str(handle), str(STATE)]
        env = {"HOLDFAST_STATE": str(STATE), "HOLDFAST_CLUSTER_NUMBER": str(NUMBER)}
        processes.start("guard", command, env, cwd=REPOSITORY, keep=[handle])
    finally:
        os.close(handle)


def guard(handle: int) -> None:
    select.select([handle], [], [])
    with alone():
        # Ours no more, if somebody else has removed that cluster meanwhile and made another.
        if processes.pid_of("guard") == os.getpid():
            _down()


def status() -> None:
    if not STATE.exists():
        print("down")
        return
    for name in processes.names():
        pid = processes.pid_of(name)
        print(f"{name}: {'gone' if pid is None else f'pid {pid}'}")
    print("healthy" if running().healthy() else f"not healthy; logs are in {STATE}/log")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    verbs = ["up", "down", "status", "build", "tools", "leftovers", "guard"]
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("number", nargs="?", type=int, help=argparse.SUPPRESS)
    parser.add_argument("state", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        return _do(given.verb, given.number)
    except ClusterError as error:
        say(str(error))
        return 1


def _do(verb: str, number: int | None) -> int:
    match verb:
        case "up":
            up(number)
        case "down":
            with timed("down"):
                down()
        case "status":
            status()
        case "build":
            with alone():
                _choose().build()
        case "tools":
            print(*_choose().tools())
        case "leftovers":
            found = leftovers()
            print("\n".join(found) or "nothing is left")
            return 1 if found else 0
        case "guard" if number is not None:
            guard(number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
