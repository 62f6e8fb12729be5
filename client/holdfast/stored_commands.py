"""The commands that store a session of a cluster, let it go on, and copy it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.arguments import Given
from holdfast.commands import no_more, write
from holdfast.facts import Facts, Phase
from holdfast.render import to_stderr
from holdfast_wire.errors import BadRequest, Forbidden, Unavailable, Unsupported

if TYPE_CHECKING:
    from holdfast.cluster import Cluster

WAKE: Final = "holdfast.dev/wake"
# Storing takes as long as its memory takes to be sent, and a pod may have to wait for room.
_SECONDS: Final = 300.0
_POLL: Final = (0.2, 2.0)
_PROGRESS_SECONDS: Final = 2.0
# What the last attempt said of it is not believed before the operator has looked again.
_GRACE_SECONDS: Final = 3.0
_SLEEPS: Final = (Phase.SUSPENDED, Phase.RESTORING)
# What of a Session is its own, and not the fork's.
_OWN: Final = ("suspended", "ended", "forkFrom")


def _cluster(given: Given) -> Cluster:
    from holdfast.cluster import Cluster

    if given.target is None:
        raise Unsupported(
            "only sessions of a cluster can be forked",
            "for example: kubectl holdfast fork NAME NEW",
        )
    return Cluster(given.target)


def suspend(given: Given) -> int:
    no_more(given.words[1:], given.after)
    cluster = _cluster(given)
    found = _living(cluster, cluster.pick(given.words))
    name = found.name
    cluster.api.patch(name, {"spec": {"suspended": True}})
    if given.options.no_wait:
        write(f"{name} is to be suspended\n")
        return 0
    before = found.condition("Checkpointed")

    def cannot(now: Facts) -> str:
        kept = now.condition("Checkpointed")
        new = kept is not None and kept.reason in (
            "CheckpointFailed",
            "NoNodeAgent",
            "QuotaExceeded",
        )
        return kept.message if kept is not None and new and kept != before else ""

    try:
        _wait(cluster, name, "suspended", lambda now: now.phase == Phase.SUSPENDED, cannot)
    except BaseException:
        # Else it would be tried again and again, and nobody waits for it.
        cluster.api.patch(name, {"spec": {"suspended": False}})
        raise
    write(f"{name} is suspended; go on with: {cluster.advise('wake', name)}\n")
    return 0


def wake(given: Given) -> int:
    no_more(given.words[1:], given.after)
    cluster = _cluster(given)
    found = _living(cluster, cluster.pick(given.words))
    if found.phase not in _SLEEPS:
        if found.suspends:  # asked for, and not yet done
            cluster.api.patch(found.name, {"spec": {"suspended": False}})
        write(f"{found.name} is not suspended: it is {found.phase}\n")
        return 0
    if given.options.no_wait:
        _ask_to_wake(cluster, found)
        write(f"{found.name} is to wake\n")
        return 0
    awake = woken(cluster, found)
    write(f"{awake.name} goes on, on {awake.node}\n")
    return 0


def woken(cluster: Cluster, found: Facts) -> Facts:
    """Returns when it runs again; also of one that is on its way back already."""
    if found.phase == Phase.SUSPENDED or found.suspends:
        to_stderr(f"waking {found.name} …")
        _ask_to_wake(cluster, found)

    def cannot(now: Facts) -> str:
        ready = now.condition("Ready")
        gone = ready is not None and ready.reason == "CheckpointGone"
        return ready.message if ready is not None and gone else ""

    return _wait(cluster, found.name, "woken", lambda now: now.phase == Phase.RUNNING, cannot)


def _ask_to_wake(cluster: Cluster, found: Facts) -> None:
    patch: dict[str, Any] = {"metadata": {"annotations": {WAKE: str(found.epoch or 0)}}}
    if found.suspends:
        patch["spec"] = {"suspended": False}
    try:
        cluster.api.patch(found.name, patch)
    except Forbidden:
        if not cluster.wake(found.name):
            raise


def fork(given: Given) -> int:
    no_more(given.words[2:], given.after)
    cluster = _cluster(given)
    if len(given.words) < 2:
        raise BadRequest(
            "which session, and what is the fork to be called?",
            f"for example: {cluster.advise('fork', 'build')} build-2",
        )
    from holdfast.cluster_commands import new_name

    source, name = given.words[0], new_name(given.words[1])
    found = cluster.find(source)
    origin = {"checkpoint": given.options.checkpoint} if given.options.checkpoint else {
        "session": found.name
    }  # fmt: skip
    body = cluster.api.session(found.name)
    spec = {key: value for key, value in body["spec"].items() if key not in _OWN}
    made = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Session",
        "metadata": {"name": name},
        "spec": {**spec, "forkFrom": origin},
    }
    cluster.api.create(made)
    if given.options.no_wait:
        write(f"{name} is to be a fork of {found.name}\n")
        return 0

    def cannot(now: Facts) -> str:
        accepted = now.condition("Accepted")
        return accepted.message if accepted is not None and accepted.bad else ""

    _wait(cluster, name, "forked", lambda now: now.phase == Phase.RUNNING, cannot)
    write(f"{name} is a fork of {found.name}; attach with: {cluster.advise('attach', name)}\n")
    return 0


def _living(cluster: Cluster, name: str) -> Facts:
    from holdfast.cluster import ended_error

    found = cluster.find(name)
    if found.over:
        raise ended_error(found, cluster)
    return found


def _wait(
    cluster: Cluster,
    name: str,
    what: str,
    done: Callable[[Facts], bool],
    cannot: Callable[[Facts], str],
) -> Facts:
    """Says what it waits for, whenever that changes."""
    from holdfast.cluster import ended_error

    started = time.monotonic()
    pause, longest = _POLL
    told = ""
    while (waited := time.monotonic() - started) < _SECONDS:
        found = cluster.find(name)
        if done(found):
            return found
        if found.over:
            raise ended_error(found, cluster)
        why = cannot(found)
        if why and waited > _GRACE_SECONDS:
            raise Unavailable(
                f"session {name} is not {what}: {why}", f"see: {cluster.advise('describe', name)}"
            )
        ready = found.condition("Ready")
        said = ready.message if ready is not None else found.phase
        if waited > _PROGRESS_SECONDS and said != told:
            to_stderr(f"waiting for {name} to be {what}: {said} …")
            told = said
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
    raise Unavailable(
        f"session {name} has not been {what} within {_SECONDS:g} s",
        f"see: {cluster.advise('describe', name)}",
    )
