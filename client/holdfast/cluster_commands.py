"""The commands that create, visit, list, describe and end sessions in a cluster."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

from holdfast.arguments import Given, Target
from holdfast.cluster import Cluster, ended_error
from holdfast.commands import detach_keys, no_more, structured, write
from holdfast.facts import PHASE_COLOURS, Facts, Phase, manifest, moment
from holdfast.render import (
    Cell,
    Style,
    command_line,
    duration,
    fields,
    table,
    to_stderr,
)
from holdfast_wire.errors import (
    BadName,
    BadRequest,
    Forbidden,
    HoldfastError,
    NotFound,
    Unavailable,
)
from holdfast_wire.exits import describe_exit
from holdfast_wire.ids import session_name
from holdfast_wire.plain import plain

# The epoch and a dash must fit behind it in a pod's name.
MAX_NAME: Final = 52
_PROGRESS_SECONDS: Final = 2.0
# A pod has half a minute to end, a lost node's Lease some more to expire.
_END_SECONDS: Final = 180.0
_END_POLL: Final = (0.2, 2.0)
_EVENTS_SHOWN: Final = 12
_MOVE: Final = "holdfast.dev/move"
_PAGE_PORT: Final = 8443
_MOVE_SECONDS: Final = 180.0
# What the last attempt said of it is not believed before the operator has looked again.
_MOVE_GRACE_SECONDS: Final = 3.0


def _cluster(given: Given) -> Cluster:
    return Cluster(given.target or Target("holdfast --cluster"))


def run(given: Given) -> int:
    from holdfast.lifecycle import window

    options = given.options
    cluster = _cluster(given)
    keys = detach_keys(options.detach_keys)
    if not given.words:
        raise BadRequest("which name?", f"see: {cluster.target.prog} run --help")
    name = new_name(given.words[0])
    if len(given.words) > 1:
        raise BadRequest(
            f"what is {plain(given.words[1])[:40]!r} for?", "the command goes after '--'"
        )
    if not options.image:
        raise BadRequest(
            "which image?", f"for example: {cluster.advise('run', name)} --image debian:stable-slim"
        )
    size = options.size or window()
    body = manifest(name, options.image, given.after or ["sh"], size, options.scrollback)
    created = cluster.api.create(body)
    if structured(options.output, created):
        return 0
    if options.detach or not (os.isatty(0) and os.isatty(1)):
        write(f"{name}\n")
        if sys.stderr.isatty():
            to_stderr(f"attach with: {cluster.advise('attach', name)}")
        return 0
    return _attach(cluster, name, keys, view=False)


def new_name(text: str) -> str:
    name = session_name(text)
    if len(name) > MAX_NAME:
        raise BadName(
            f"{name!r} is too long for a session in a cluster", f"use at most {MAX_NAME} characters"
        )
    return name


def attach(given: Given) -> int:
    from holdfast.terminal import require_terminal

    no_more(given.words[1:], given.after)
    cluster = _cluster(given)
    keys = detach_keys(given.options.detach_keys)
    name = cluster.pick(given.words)
    require_terminal(name, cluster.target.prog)
    return _attach(cluster, name, keys, view=given.options.view, wake=given.options.wake)


def _attach(
    cluster: Cluster, name: str, keys: tuple[Any, ...], *, view: bool, wake: bool = False
) -> int:
    link, actor = cluster.link(name, wake=wake)
    from holdfast.attach import attach as attach_terminal
    from holdfast.attach import nonce
    from holdfast_wire.attach_core import Settings

    again = cluster.advise("attach", name)
    return attach_terminal(link, Settings(name, view, keys, nonce(), again, "kubectl", actor))


def url(given: Given) -> int:
    """By one of the names the gateway was given, or by its Service's address; else through a
    port-forward, whose command is said."""
    no_more(given.words[1:], given.after)
    cluster = _cluster(given)
    name = cluster.pick(given.words)
    where = cluster.find(name).namespace
    page = cluster.page()
    at = page.host or f"localhost:{_PAGE_PORT}"
    found = {"url": f"https://{at}/#/{where}/{name}"}
    if not page.host:
        namespace, _, service = page.service.partition("/")
        target = cluster.target
        options = [("--context", target.context), ("--kubeconfig", target.kubeconfig)]
        given_too = [word for option in options if option[1] for word in option]
        what = ["port-forward", "-n", namespace, f"service/{service}", f"{_PAGE_PORT}:443"]
        found["forward"] = command_line(["kubectl", *given_too, *what])
        to_stderr(f"reached while this runs: {found['forward']}")
    if not structured(given.options.output, found):
        write(found["url"] + "\n")
    return 0


def ls(given: Given) -> int:
    no_more(given.words, given.after)
    options = given.options
    cluster = _cluster(given)
    everywhere = options.all_namespaces
    found = cluster.sessions(everywhere)
    if options.output == "name":
        lead = "{0.namespace}/{0.name}\n" if everywhere else "{0.name}\n"
        write("".join(lead.format(one) for one in found))
    elif structured(options.output, {"sessions": [one.to_json() for one in found]}):
        return 0
    elif found:
        header: tuple[str, ...] = (
            "NAME", "PHASE", "NODE", "EPOCH", "TURN", "CLIENTS", "IDLE", "AGE",
        )  # fmt: skip
        rows = [_row(one, time.time()) for one in found]
        if everywhere:
            header = ("NAMESPACE", *header)
            rows = [[Cell(one.namespace), *row] for one, row in zip(found, rows, strict=True)]
        write(table(header, rows, Style.of(sys.stdout)))
    else:
        start = cluster.advise("run NAME --image IMAGE")
        to_stderr(f"there are no sessions; create one with: {start}")
    return 0


def _row(one: Facts, now: float) -> list[Cell]:
    phase: str = one.phase
    if one.over and one.exit is not None:
        phase = f"{phase} ({describe_exit(one.exit)[1]})"
    elif one.move:
        phase = f"{phase} ({one.move})"
    idle = one.active is not None and not one.over
    return [
        Cell(one.name, None if one.over else "bold"),
        Cell(phase, PHASE_COLOURS.get(one.phase)),
        Cell(one.node or "-"),
        Cell("-" if one.epoch is None else str(one.epoch)),
        Cell(one.turn or "-"),
        Cell("-" if one.clients is None else str(one.clients)),
        Cell(_since(one.active, now) if idle else "-"),
        Cell(_since(one.created, now)),
    ]


def _since(when: float | None, now: float) -> str:
    return "-" if when is None else duration(now - when)


def describe(given: Given) -> int:
    no_more(given.words[1:], given.after)
    cluster = _cluster(given)
    found = cluster.find(cluster.pick(given.words))
    events = _events(cluster, found)
    if structured(given.options.output, {**found.to_json(), "events": events}):
        return 0
    style = Style.of(sys.stdout)
    write(fields(_facts(found, time.time()), style))
    if found.conditions:
        rows = [
            [
                Cell(f"  {one.type}"),
                Cell(one.status, "red" if one.bad else None),
                Cell(one.reason or "-"),
                Cell(one.message),
            ]
            for one in found.conditions
        ]
        write("\n" + table(("Conditions", "Status", "Reason", "Message"), rows, style))
    if found.over and found.last_lines:
        lines = "".join(f"  {plain(line)}\n" for line in found.last_lines)
        write("\n" + style.paint("Last lines", "bold") + "\n" + lines)
    if events:
        rows = [
            [Cell(f"  {text}") if not i else Cell(text) for i, text in enumerate(event.values())]
            for event in events
        ]
        write("\n" + table(("Events", "Type", "Reason", "Message"), rows, style))
    return 0


def _facts(found: Facts, now: float) -> dict[str, object]:
    ago = {
        name: f"{duration(now - when)} ago"
        for name, when in (
            ("Created", found.created),
            ("Started", found.started),
            ("Last active", found.active),
            ("Last checkpoint", found.stored),
            ("Ended", found.ended),
        )
        if when is not None
    }
    doing = f" ({found.activity})" if found.activity and not found.over else ""
    cause = found.exit.get("cause") if found.exit else None
    return {
        "Name": found.name,
        "Namespace": found.namespace,
        "Phase": found.phase + doing,
        "Trouble": "" if found.over else found.trouble(),
        "Exit": (found.ending() + (f" ({cause})" if cause else "")) if found.over else "",
        "Command": command_line(found.command) if found.command else "",
        "Stored in": found.suspended,
        "Node": found.node,
        "Pod": found.pod,
        "Epoch": found.epoch,
        "Turn": found.turn,
        "Clients": found.clients,
        "Move": found.move,
        "Notice": found.notice,
        **ago,
    }


def _events(cluster: Cluster, found: Facts) -> list[dict[str, str]]:
    """The latest, oldest first. Somebody who may not read events is told all the rest."""
    try:
        items = cluster.api.events(found.name, found.namespace)
    except HoldfastError as error:
        to_stderr(f"its events cannot be read: {plain(error.message)}")
        return []
    now = time.time()
    dated = sorted((_event_time(item), number, item) for number, item in enumerate(items))
    return [
        {
            "age": duration(now - when) if when else "-",
            **{key: str(item.get(key) or "-") for key in ("type", "reason", "message")},
        }
        for when, _, item in dated[-_EVENTS_SHOWN:]
    ]


def _event_time(item: dict[str, Any]) -> float:
    for key in ("lastTimestamp", "eventTime", "firstTimestamp"):
        if (when := moment(item.get(key))) is not None:
            return when
    return 0.0


def end(given: Given) -> int:
    options = given.options
    cluster = _cluster(given)
    if options.all:
        no_more(given.words, given.after)
        names = cluster.names()
        if not names:
            to_stderr("there is no session to end")
    else:
        no_more(given.words[1:], given.after)
        names = [cluster.pick(given.words)]
        found = cluster.find(names[0])
        if found.over:
            raise ended_error(found, cluster)
    for name in names:
        _ask_to_end(cluster, name)
    if options.no_wait:
        write("".join(f"{name} is ending\n" for name in names))
        return 0
    # All have been asked, so that they end side by side; then each is waited for.
    for name in names:
        write(f"{name} ended: {_wait_for_end(cluster, name)}\n")
    return 0


def _ask_to_end(cluster: Cluster, name: str) -> None:
    """By its object, which also ends one that is nowhere at the moment; who may not write that may
    still have the right to `sessions/moderate`."""
    try:
        cluster.api.patch(name, {"spec": {"ended": True}})
    except Forbidden:
        with cluster.connect(name) as session:
            session.request("end")


def _wait_for_end(cluster: Cluster, name: str) -> str:
    """How it ended, in words."""
    started = time.monotonic()
    pause, longest = _END_POLL
    told = False
    while (waited := time.monotonic() - started) < _END_SECONDS:
        try:
            found = cluster.find(name)
        except NotFound:
            return "gone"
        if found.over:
            return found.ending()
        if waited > _PROGRESS_SECONDS and not told:
            to_stderr(f"waiting for {name} to end …")
            told = True
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
    raise Unavailable(
        f"session {name} was told to end and has not yet",
        f"see: {cluster.advise('describe', name)}",
    )


def move(given: Given) -> int:
    no_more(given.words[1:], given.after)
    options, cluster = given.options, _cluster(given)
    found = cluster.find(cluster.pick(given.words))
    if found.over:
        raise ended_error(found, cluster)
    if found.epoch is None or not found.node:
        raise Unavailable(
            f"session {found.name} has not begun", f"see: {cluster.advise('describe', found.name)}"
        )
    if options.to == found.node:
        write(f"{found.name} is on {found.node} already\n")
        return 0
    if options.to:
        _check_node(cluster, options.to)
    wanted = f"{found.epoch}" + (f"/{options.to}" if options.to else "")
    cluster.api.annotate(found.name, _MOVE, wanted)
    if options.no_wait:
        write(f"{found.name} is to move\n")
        return 0
    try:
        arrived = _wait_for_move(cluster, found)
    except BaseException:
        # Else it would be tried again and again, and nobody waits for it.
        cluster.api.annotate(found.name, _MOVE, None)
        raise
    write(f"{found.name} is on {arrived.node} now\n")
    return 0


def _check_node(cluster: Cluster, name: str) -> None:
    try:
        cluster.api.node(name)
    except NotFound:
        raise BadRequest(f"there is no node {name!r}", "see: kubectl get nodes") from None
    except Forbidden:
        return  # who may not see nodes may still know one


def _wait_for_move(cluster: Cluster, before: Facts) -> Facts:
    started = time.monotonic()
    pause, longest = _END_POLL
    told = ""
    while (waited := time.monotonic() - started) < _MOVE_SECONDS:
        found = cluster.find(before.name)
        if found.over:
            raise ended_error(found, cluster)
        if (found.epoch or 0) > (before.epoch or 0) and found.phase == Phase.RUNNING:
            return found
        movable = found.condition("Movable")
        if movable is not None and movable.bad and waited > _MOVE_GRACE_SECONDS:
            raise Unavailable(
                f"session {before.name} runs on where it is: {movable.message}",
                f"see: {cluster.advise('describe', before.name)}",
            )
        words = found.move or "…"
        if waited > _PROGRESS_SECONDS and words != told:
            to_stderr(f"waiting for {before.name} to move: {plain(words)}")
            told = words
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
    raise Unavailable(
        f"session {before.name} has not moved within {_MOVE_SECONDS:g} s, and runs on where it is",
        f"see: {cluster.advise('describe', before.name)}",
    )
