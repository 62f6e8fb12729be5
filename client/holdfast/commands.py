"""The commands that look at and act on one session. Each is a function from what was given to an
exit code; `lifecycle.py` has those that start, visit and end sessions on this machine,
`cluster_commands.py` the same in a cluster.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.arguments import Given
from holdfast.places import place_of
from holdfast.render import Cell, Style, process_tree, table, to_stderr
from holdfast.specs import DETACH_KEYS, SHELLS, WAIT_FOR
from holdfast_wire.errors import BadRequest, Busy, Ended
from holdfast_wire.ids import shown
from holdfast_wire.plain import plain

if TYPE_CHECKING:
    from holdfast.connection import Connection
    from holdfast_wire.keys import Key

# An input larger than this is sent in parts: base64 and JSON around it must fit a frame of those
# that a gateway takes.
_SEND_BYTES: Final = 1 << 17
_SLACK_SECONDS: Final = 15.0
_POLL: Final = (0.05, 0.5)
_WAITING: Final = frozenset({"prompt", "reading", "password"})


class TimedOut(Busy):
    exit_code = 124  # as timeout(1) has it


def write(text: str) -> None:
    sys.stdout.write(text)


def write_json(body: object) -> None:
    write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def structured(output: str | None, body: object) -> bool:
    """Writes it, if it was asked for in a form for programs."""
    if output == "json":
        write_json(body)
    elif output == "yaml":
        from holdfast.plainyaml import write as yaml

        write(yaml(body))
    else:
        return False
    return True


def no_more(words: list[str], after: list[str] | None = None) -> None:
    extra = [*words, *(after or [])]
    if extra:
        raise BadRequest(f"what is {plain(extra[0])[:40]!r} for?", "see the command's --help")


def detach_keys(chosen: str | None) -> tuple[Key, ...]:
    from holdfast_wire.keys import parse_detach_keys

    return parse_detach_keys(chosen or os.environ.get("HOLDFAST_DETACH_KEYS") or DETACH_KEYS)


def session_of(given: Given) -> Connection:
    no_more(given.words[1:], given.after)
    place = place_of(given)
    return place.connect(place.pick(given.words))


def _ask(given: Given, kind: str, **fields: Any) -> Any:
    with session_of(given) as session:
        return session.request(kind, **fields)


def screen(given: Given) -> int:
    options = given.options
    no_more(given.words[1:], given.after)
    place = place_of(given)
    name = place.pick(given.words)
    style = "ansi" if options.ansi else "text"
    try:
        with place.connect(name) as session:
            result = session.request("screen", format=style, scrollback=options.scrollback)
    except Ended as error:
        result = place.last_screen(name)
        if result is None:
            raise
        to_stderr(f"{plain(error.message)}; these are its last lines")
    if structured(options.output, result):
        return 0
    text = str(result["text"])
    if not options.ansi:
        text = "\n".join(plain(line) for line in text.split("\n"))
    write(text.rstrip("\n") + ("\x1b[0m\n" if options.ansi else "\n"))
    if result.get("truncated"):
        to_stderr("the scrollback is longer than fits one answer; this is its end")
    return 0


def send(given: Given) -> int:
    from base64 import b64encode

    place = place_of(given)
    name = place.pick(given.words)
    data = _typed(given, place.advise("send", name))
    if given.options.key and len(data) > _SEND_BYTES:
        raise BadRequest(
            f"with --key at most {_SEND_BYTES} bytes are sent at once", "send less, or without it"
        )
    result: Any = {}
    with place.connect(name) as session:
        for start in range(0, len(data), _SEND_BYTES):
            part = b64encode(data[start : start + _SEND_BYTES]).decode()
            result = session.request("send", base64=part, key=given.options.key)
    if not structured(given.options.output, result) and result.get("duplicate"):
        to_stderr(f"already sent under the key {given.options.key}; not sent again")
    return 0


def _typed(given: Given, example: str) -> bytes:
    from holdfast_wire.keys import encode_keys

    words = [*given.words[1:], *(given.after or [])]
    data = sys.stdin.buffer.read() if words == ["-"] else os.fsencode(" ".join(words))
    if given.options.enter:
        data += b"\r"
    if given.options.keys:
        data += encode_keys(given.options.keys)
    if not data:
        raise BadRequest(
            "there is nothing to send",
            f"for example: {example} 'make test' --enter; or --keys C-c",
        )
    return data


def execute(given: Given) -> int:
    import shlex

    options = given.options
    if given.after is None or not given.after:
        raise BadRequest(
            "exec needs a command after '--'",
            f"for example: holdfast exec {given.words[0] if given.words else 'NAME'} -- make test",
        )
    no_more(given.words[1:])
    command = given.after[0] if len(given.after) == 1 else shlex.join(given.after)
    place = place_of(given)
    with place.connect(place.pick(given.words)) as session:
        result = session.request(
            "exec",
            within=options.timeout + _SLACK_SECONDS,
            command=command,
            timeout=options.timeout,
            key=options.key,
        )
    return _executed(options.output, result)


def _executed(output: str | None, result: dict[str, Any]) -> int:
    code = result.get("exit_code")
    if not structured(output, result):
        text = str(result.get("output", ""))
        write(text if not text or text.endswith("\n") else text + "\n")
        if result.get("truncated"):
            to_stderr("the output was longer than is kept; this is its end")
        if result.get("duplicate"):
            to_stderr("this key was used before; the command was not run again")
        if code is None:
            to_stderr("its exit code is not known: it was interrupted, or is no shell command")
    return code if isinstance(code, int) else 1


def graph(given: Given) -> int:
    result = _ask(given, "graph")
    if structured(given.options.output, result):
        return 0
    if not result.get("processes"):
        write("no processes\n")
    else:
        write(process_tree(result, Style.of(sys.stdout)))
    return 0


def state(given: Given) -> int:
    result = _ask(given, "state")
    if not structured(given.options.output, result):
        write(f"{_sentence(result)}\n")
    return 0


def _sentence(result: dict[str, Any]) -> str:
    from holdfast_wire.exits import describe_exit

    exit_status = result.get("exit")
    if isinstance(exit_status, dict):
        return f"ended: {describe_exit(exit_status)[0]}"
    return f"{plain(result.get('activity', '?'))}: {plain(result.get('sentence', ''))}"


def wait(given: Given) -> int:
    options = given.options
    wanted = _wanted(options.wanted)
    no_more(given.words[1:], given.after)
    place = place_of(given)
    name = place.pick(given.words)
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    pause, longest = _POLL
    while True:
        result = place.look(name)
        activity = result.get("activity")
        if activity in wanted:
            if not structured(options.output, result):
                write(f"{_sentence(result)}\n")
            return 0
        if activity == "ended":
            raise Ended(f"session {name} has ended while waiting: {_sentence(result)}")
        left = longest if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(
                f"session {name} is not there after {options.timeout:g} s; {_sentence(result)}",
                f"wait longer with --timeout, or look: {place.advise('screen', name)}",
            )
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)


def _wanted(text: str) -> set[str]:
    wanted = {word.strip() for word in text.split(",")}
    for word in wanted:
        if word not in WAIT_FOR:
            raise BadRequest(
                f"a session is never {plain(word)[:30]!r}", f"wait for one of {', '.join(WAIT_FOR)}"
            )
    if "input" in wanted:
        wanted |= _WAITING
    return wanted


def _most(options: Any) -> float:
    return float("inf") if options.limit is None else options.limit


def journal(given: Given) -> int:
    options = given.options
    with session_of(given) as session:
        result = session.request("journal", after=options.after, limit=options.limit)
        records, then = list(result.get("records", [])), result.get("next")
        while options.after is not None and then is not None and len(records) < _most(options):
            left = None if options.limit is None else options.limit - len(records)
            page = session.request("journal", after=then, limit=left)
            records += page.get("records", [])
            then = page.get("next")
    result |= {"records": records, "next": then}
    if structured(options.output, result):
        return 0
    rows = [_record(record) for record in records if isinstance(record, dict)]
    write(table(("TIME", "KIND", "ACTOR", "BY", "DETAIL"), rows, Style.of(sys.stdout)))
    return 0


def _record(record: dict[str, Any]) -> list[Cell]:
    moment = record.get("time")
    when = ""
    if isinstance(moment, int | float):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    known = ("time", "kind", "actor", "uid", "shown", "modality")
    rest = " ".join(
        f"{name}={value}" for name, value in record.items() if name not in known and value != ""
    )
    return [
        Cell(when, "dim"),
        Cell(str(record.get("kind", ""))),
        Cell(shown(record) or "-"),
        Cell(str(record.get("modality") or "-")),
        Cell(rest),
    ]


def take(given: Given) -> int:
    result = _ask(given, "ask" if given.options.ask else "take")
    asked = given.options.ask and result.get("asking")
    write(f"{shown(result, 'holder')} was asked for the turn\n" if asked else _whose(result))
    return 0


def release(given: Given) -> int:
    write(_whose(_ask(given, "release", to=given.options.to or "")))
    return 0


def _whose(result: dict[str, Any]) -> str:
    holder = shown(result, "holder")
    return f"the turn is {holder}'s\n" if holder else "nobody has the turn\n"


def freeze(given: Given) -> int:
    result = _ask(given, "freeze")
    stopped = result.get("stopped")
    write(f"frozen{f': {stopped} processes' if isinstance(stopped, int) else ''}\n")
    return 0


def thaw(given: Given) -> int:
    _ask(given, "thaw")
    write("thawed\n")
    return 0


def completion(given: Given) -> int:
    from holdfast.completion import script

    no_more(given.words[1:], given.after)
    shell = given.words[0] if given.words else ""
    if shell not in SHELLS:
        what = f"there is no completion for {plain(shell)!r}" if shell else "which shell?"
        raise BadRequest(
            what,
            f"one of {', '.join(SHELLS)}; for example: source <(holdfast completion bash)",
        )
    write(script(shell))
    return 0


def version(given: Given) -> int:
    from holdfast import __version__

    no_more(given.words, given.after)
    if not structured(given.options.output, {"version": __version__}):
        write(f"holdfast {__version__}\n")
    return 0


def _lifecycle(name: str) -> Callable[[Given], int]:
    """Loaded when called: most commands need none of it."""

    def handler(given: Given) -> int:
        if given.target is None:
            from holdfast import lifecycle as module
        elif given.target.gateway:
            from holdfast import gateway_commands as module  # type: ignore[no-redef]
            from holdfast.gateway_commands import not_here

            if not hasattr(module, name):
                raise not_here(name)
        else:
            from holdfast import cluster_commands as module  # type: ignore[no-redef]

        handle: Callable[[Given], int] = getattr(module, name)
        return handle(given)

    return handler


def _jobs(name: str) -> Callable[[Given], int]:
    def handler(given: Given) -> int:
        from holdfast import job_commands

        handle: Callable[[Given], int] = getattr(job_commands, name)
        return handle(given)

    return handler


def _stored(name: str) -> Callable[[Given], int]:
    def handler(given: Given) -> int:
        if given.target is not None and given.target.gateway:
            from holdfast.gateway_commands import not_here

            raise not_here(name)
        if given.target is None and name != "fork":
            from holdfast import hibernation as module
        else:
            from holdfast import stored_commands as module  # type: ignore[no-redef]

        handle: Callable[[Given], int] = getattr(module, name)
        return handle(given)

    return handler


HANDLERS: Final[dict[str, Callable[[Given], int]]] = {
    "run": _lifecycle("run"),
    "attach": _lifecycle("attach"),
    "ls": _lifecycle("ls"),
    "url": _lifecycle("url"),
    "describe": _lifecycle("describe"),
    "move": _lifecycle("move"),
    "suspend": _stored("suspend"),
    "wake": _stored("wake"),
    "fork": _stored("fork"),
    "end": _lifecycle("end"),
    "screen": screen,
    "send": send,
    "exec": execute,
    "graph": graph,
    "state": state,
    "wait": wait,
    "logs": journal,
    "journal": journal,
    "job": _jobs("job"),
    "jobs": _jobs("jobs"),
    "take": take,
    "release": release,
    "freeze": freeze,
    "thaw": thaw,
    "completion": completion,
    "version": version,
}
