"""Six ways in to one session at once: kubectl, SSH, a browser, HTTP, MCP and the SDK. All show the
same screen, all go along when its node is drained, and each wakes it when it sleeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

import holdfast
from browser_kit import DESKTOP, Tab, browser
from client_kit import Screen
from e2e.balancer import Balancer, balanced, spread
from e2e.followers import (
    AtTerminal,
    Background,
    ByEvents,
    BySdk,
    Stream,
    background,
    without_a_gap,
)
from e2e.guests import HTTPS, NAME, NAMESPACE, SSH_PORT, Guests
from e2e.lab import Lab, Session, until
from e2e.movers import MOVED_WITHIN, await_agents, draining, other, walking
from e2e.pages import cells, signed_in
from judge import Judge

PATIENCE: Final = 60.0
DETACH: Final = b"\x1cd"
COLUMNS, ROWS = 90, 25  # as the terminals of the tests are
SIZE: Final = {"spec": {"terminal": {"columns": COLUMNS, "rows": ROWS}}}
# Who is away for less than this is not bothered (QUIET_SECONDS of attach_core, and some margin).
NOTICED: Final = 2.5
PLAIN: Final = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}

# Colours, attributes, wide and combined characters, and a cursor that is somewhere.
PAINTING: Final = r"""
import sys, time
for n in range(60):
    print(f"line {n} \033[3{n % 8}mcolour \033[1;4mbold\033[0m \033[48;5;{n + 100}mground\033[0m")
print("wide 漢字 e\u0301 \033[38;2;10;200;30mrgb\033[0m \033[7minverse\033[0m \033[9mgone\033[0m")
print("\033[5;30H\033[44m in the middle \033[0m\033[12;7Hlast of all", end="", flush=True)
time.sleep(3600)
"""


class Six:
    """All of them attached to one session: wanda by kubectl and SSH, otto by the others."""

    def __init__(
        self, guests: Guests, session: Session, chromium: Browser, aside: Background,
        open_here: ExitStack, at: Balancer | None = None,
    ) -> None:  # fmt: skip
        """What is opened is closed with `open_here`. `at`: where events, SDK and SSH come in."""
        name, at = session.name, at or guests.balancer
        url = f"https://{NAME}:{at.port[HTTPS]}"
        ssh = guests.ssh_at("127.0.0.1", at.port[SSH_PORT])
        self.by_sdk = BySdk(guests.sdk("otto", name, url))
        self.by_events = ByEvents(guests, "otto", name, url)
        for one in (self.by_sdk, self.by_events):
            aside.start(one.follow())
        self.kubectl = AtTerminal(guests.attach("wanda", name))
        open_here.callback(self.kubectl.close)
        self.ssh = AtTerminal(ssh.terminal("wanda", f"{name}.{NAMESPACE}"))
        open_here.callback(self.ssh.close)
        self.page = Tab(chromium.new_context(**DESKTOP, ignore_https_errors=True))
        open_here.callback(self.page.context.close)
        signed_in(self.page, guests, "otto", name).live()

    @property
    def terminals(self) -> dict[str, AtTerminal]:
        return {"kubectl": self.kubectl, "ssh": self.ssh}

    @property
    def streams(self) -> dict[str, Stream]:
        return {"sdk": self.by_sdk, "events": self.by_events}


@pytest.fixture(scope="module")
def chromium(guests: Guests) -> Iterator[Browser]:
    with browser(guests.resolver) as started:
        yield started


@pytest.fixture
def aside() -> Iterator[Background]:
    with background() as made:
        yield made


async def observe(guests: Guests, session: str, **more: Any) -> dict[str, Any]:
    async with guests.agent("otto") as agent:
        given = {"session": f"{NAMESPACE}/{session}", **more}
        result = await agent.call_tool("observe", given)
        found: dict[str, Any] = result.structured_content
        return found


# -- the same screen -------------------------------------------------------------------------------


def rendered(judge: Judge, data: bytes) -> list[Any]:
    """The cells of the screen that these bytes give, row by row."""
    with judge.terminal(COLUMNS, ROWS) as terminal:
        terminal.write(data)
        shown = terminal.dump()
    buffer = shown["normal"]
    lines = [line["cells"] for line in buffer["lines"][buffer["base"] :]]
    return [*lines, shown["cursor"]]


def text_of(screen: list[Any]) -> list[str]:
    *lines, _ = screen
    return ["".join(cell[0] for cell in line if cell[1]).rstrip() for line in lines]


@pytest.mark.timeout(180)
def test_all_show_the_same_screen(
    lab: Lab, guests: Guests, chromium: Browser, aside: Background
) -> None:
    session = guests.reached(lab.session("painted", "python3", "-c", PAINTING, **SIZE))
    with ExitStack() as open_here:
        judge = open_here.enter_context(closing(Judge()))
        six = Six(guests, session, chromium, aside, open_here)
        truth = aside.run(_snapshot(guests, session.name))
        wanted = rendered(judge, truth)
        assert "in the middle" in "\n".join(text_of(wanted))
        assert "漢字" in "\n".join(text_of(wanted))
        looks: dict[str, Callable[[], list[Any]]] = {
            "kubectl": lambda: rendered(judge, six.kubectl.seen),
            "ssh": lambda: rendered(judge, six.ssh.seen),
            "browser": lambda: cells(six.page),
            "events": lambda: rendered(judge, bytes(six.by_events.picture)),
            "sdk": lambda: rendered(judge, bytes(six.by_sdk.picture)),
        }
        for way, look in looks.items():
            _same(way, look, wanted)
        told = aside.run(observe(guests, session.name))
        assert [line.rstrip() for line in told["screen"].split("\n")] == _trimmed(text_of(wanted))
        column, row = wanted[-1]
        assert (told["cursor"]["column"], told["cursor"]["row"]) == (column, row)
        aside.check()


async def _snapshot(guests: Guests, session: str) -> bytes:
    """The sidecar's own screen, whole."""
    async with guests.sdk("otto", session) as own:
        async for item in own.stream():
            if isinstance(item, holdfast.Snapshot):
                assert (item.columns, item.rows) == (COLUMNS, ROWS)
                return bytes(item.data)
    raise AssertionError("the stream ended")


def _same(way: str, look: Callable[[], list[Any]], wanted: list[Any]) -> None:
    """A client's own line at the bottom is there for a moment."""
    try:
        until(lambda: look() == wanted, way, 20)
    except AssertionError:
        for row, (found, right) in enumerate(zip(look(), wanted, strict=True)):
            assert found == right, f"{way}, row {row}"
        raise


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines


# -- a drain ---------------------------------------------------------------------------------------


def counted(data: bytes | str) -> list[int]:
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return [int(number) for number in re.findall(r"<[12]:(\d+)>", text)]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_drain_under_all_of_them(
    lab: Lab, guests: Guests, chromium: Browser, aside: Background
) -> None:
    await_agents(lab)
    spread(lab)
    session = walking(lab, "drained", spec=SIZE["spec"], node=lab.away())
    guests.reached(session)
    left = session.node

    def stays(pod: dict[str, Any]) -> bool:
        return bool(pod["spec"]["nodeName"] != left)

    with ExitStack() as open_here:
        # SSH has no way to take a connection along, and MCP's call is one request: these are at the
        # replica that stays, as are the streams that must hear the news of the move. kubectl and
        # the page are wherever they came, and come again if that one is evicted too.
        beside = open_here.enter_context(balanced(lab, HTTPS, SSH_PORT))
        beside.only = stays
        six = Six(guests, session, chromium, aside, open_here, beside)
        six.page.page.evaluate(_NOTICES)
        for terminal in six.terminals.values():
            terminal.shows(b"<1:")
        waits = aside.start(_agent_waits(guests, beside, session.name))
        with draining(lab, left) as drain:
            session.await_epoch(2, MOVED_WITHIN)
            drain.succeeds()
        assert session.node == other(left)
        target = session.marks()[-1].number + 60
        until(lambda: session.marks()[-1].number > target, "it counts on")
        seen: dict[str, Callable[[], list[int]]] = {
            "kubectl": lambda: counted(six.kubectl.seen),
            "ssh": lambda: counted(six.ssh.seen),
            "browser": lambda: counted(six.page.text()),
            "events": lambda: counted(bytes(six.by_events.stream)),
            "sdk": lambda: counted(bytes(six.by_sdk.stream)),
        }
        for way, numbers in seen.items():
            _follows(way, numbers, target)
            without_a_gap(way, numbers(), painted_anew=way in six.terminals)
        aside.check()
        for way, stream in six.streams.items():
            assert "moving" in stream.kinds, way
            assert "gap" not in stream.kinds, way
        for way, terminal in six.terminals.items():
            told = b"is moving to another node" in terminal.seen
            assert told or terminal.longest_pause < NOTICED, (way, terminal.longest_pause)
        assert "Moving to another node" in six.page.page.evaluate("notices.join('|')")
        assert waits(PATIENCE)["met"]
        assert session.epoch == 2


def _follows(way: str, numbers: Callable[[], list[int]], target: int) -> None:
    until(lambda: numbers()[-1:] > [target], f"{way} shows {target}", PATIENCE)


# What the page tells, however briefly.
_NOTICES: Final = """() => {
  globalThis.notices = [];
  const look = () => {
    const notice = document.getElementById('notice');
    if (!notice.hidden) notices.push(notice.innerText);
  };
  new MutationObserver(look).observe(document.body,
    { subtree: true, childList: true, attributes: true, characterData: true });
}"""


async def _agent_waits(guests: Guests, at: Balancer, session: str) -> dict[str, Any]:
    """One call of an agent's, from before the move until the other incarnation shows."""
    async with guests.agent("otto", f"https://{NAME}:{at.port[HTTPS]}") as agent:
        given = {"session": f"{NAMESPACE}/{session}", "state": "any", "text": "<2:"}
        result = await agent.call_tool("wait_for", {**given, "timeout": 120})
        found: dict[str, Any] = result.structured_content
        assert "error" not in found, found
        return found


# -- asleep ----------------------------------------------------------------------------------------


def _terminal(open_here: ExitStack, screen: Screen) -> None:
    open_here.callback(screen.close)
    screen.expect(rb"kept-42", MOVED_WITHIN)
    screen.type(DETACH)
    assert screen.wait(PATIENCE) == 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_each_of_them_wakes_a_session_that_sleeps(
    lab: Lab, guests: Guests, chromium: Browser, aside: Background
) -> None:
    await_agents(lab)
    session = lab.session("asleep", "bash", "--norc", container={"securityContext": PLAIN})
    guests.reached(session)
    session.type("kept=$((6*7)); echo kept-$kept")
    session.await_text("\nkept-42")
    name = session.name

    def page(open_here: ExitStack) -> None:
        tab = Tab(chromium.new_context(**DESKTOP, ignore_https_errors=True))
        open_here.callback(tab.context.close)
        signed_in(tab, guests, "otto", name).shows("kept-42", MOVED_WITHIN)

    def events(open_here: ExitStack) -> None:
        viewer = ByEvents(guests, "otto", name)
        aside.start(viewer.follow())
        until(lambda: b"kept-42" in viewer.picture, "its events", MOVED_WITHIN)

    async def by_sdk() -> str:
        async with guests.sdk("otto", name) as own:
            return (await own.screen()).text

    ways: dict[str, Callable[[ExitStack], object]] = {
        "kubectl": lambda here: _terminal(here, guests.attach("wanda", name)),
        "ssh": lambda here: _terminal(here, guests.ssh.terminal("wanda", f"{name}.{NAMESPACE}")),
        "browser": page,
        "events": events,
        "mcp": lambda _: _has(aside.run(observe(guests, name), MOVED_WITHIN)["screen"]),
        "sdk": lambda _: _has(aside.run(by_sdk(), MOVED_WITHIN)),
    }
    for number, (way, attach) in enumerate(ways.items(), start=1):
        lab.holdfast("suspend", name, timeout=MOVED_WITHIN)
        assert session.await_phase("Suspended")["epoch"] == number, way
        lab.holdfast("wake", name, "--no-wait")  # a person suspended it, and so one wakes it
        with ExitStack() as open_here:
            attach(open_here)
            session.await_epoch(number + 1, MOVED_WITHIN)
        aside.check()
    lab.holdfast("send", name, "echo still-$kept", "--enter")
    session.await_text("still-42")


def _has(text: str) -> None:
    assert "kept-42" in text
