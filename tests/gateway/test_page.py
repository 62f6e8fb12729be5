"""The page in a real browser, on real sessions, while things are killed under it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

import gateway_kit
from browser_kit import CALM, DESKTOP, PHONE, Tab, browser
from gateway_kit import Place, until
from holdfast_wire.frames import Decoder, Input

OpenTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def tab(chrome: Browser) -> Iterator[OpenTab]:
    """Opens tabs, each in a browser profile of its own; none may have thrown when the test ends."""
    opened: list[Tab] = []

    def make(**settings: Any) -> Tab:
        context = chrome.new_context(**{**DESKTOP, **CALM, **settings})
        opened.append(Tab(context))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()
    assert [fault for one in opened for fault in one.faults] == []


@pytest.fixture(scope="module")
def gateway() -> Iterator[Place]:
    with gateway_kit.place() as here:
        here.start()
        yield here


@pytest.fixture
def running(gateway: Place) -> Iterator[Place]:
    """A session that nobody saw before, at the module's gateway."""
    gateway.session("build")
    gateway.post("/api/v1/rescan")
    gateway.sidecar("build")
    yield gateway
    for folder in list(gateway.state.glob("sessions/*")):
        gateway.end(folder.name)


@pytest.fixture
def own(place: Place) -> Place:
    """With a gateway of its own, for tests that stop and kill things."""
    place.session("build")
    place.start()
    place.sidecar("build")
    return place


def test_a_person_opens_the_link_and_types(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build")).live()
    assert running.token not in page.page.url
    page.type("echo hello-$((6*7))\n")
    page.shows("hello-42")
    page.says("#activity", "at prompt")
    page.says("#clients", "you")
    page.says("#connection", "live")
    page.type("printf '\\033]2;my title\\007'\n")
    page.says("#title", "my title")
    assert "my title" in page.page.title()
    page.picture("desktop-dark")
    page.page.reload()
    page.live()
    page.shows("hello-42")


def test_the_session_takes_the_window_of_who_types(running: Place, tab: OpenTab) -> None:
    first = tab().open(running.link("build")).live()
    first.type("true\n")
    until(lambda: first.size != (80, 24), "the session to take the first window's size")
    wide = first.size
    phone = tab(**PHONE).open(running.link("build")).live()
    until(lambda: phone.size == wide, "a newcomer to take the session's size, not to set it")
    assert first.size == wide
    phone.picture("phone-onlooker")
    phone.tap()
    phone.type("true\n")
    until(lambda: phone.size[0] < 60, "the phone to lead")
    until(lambda: first.size == phone.size, "the desktop to follow")
    first.picture("desktop-follows-phone")
    first.says("#clients [data-lead]", "root" if os.geteuid() == 0 else "")


def test_a_killed_gateway_is_outlived(own: Place, tab: OpenTab) -> None:
    page = tab().open(own.link("build")).live()
    page.type("echo before-$((1+1))\n")
    page.shows("before-2")
    own.stop(signal.SIGKILL)
    page.says("#notice", "Connection lost")
    page.says("#notice button", "Try now")
    assert "before-2" in page.text(), "the screen stays while the line is down"
    page.picture("reconnecting")
    page.type("echo while-away-$((1+1))\n")
    own.start()
    page.shows("while-away-2")
    assert page.text().count("\nwhile-away-2") == 1
    assert page.text().count("\nbefore-2") == 1, "resumed, not drawn twice"
    until(lambda: page.page.locator("#notice").is_hidden(), "the notice to go")


def test_a_killed_sidecar_is_hardly_noticed(own: Place, tab: OpenTab) -> None:
    page = tab().open(own.link("build")).live()
    for number in range(3):
        page.type(f"echo round-{number}-$((1+1))\n")
        os.kill(own.sidecar("build"), signal.SIGKILL)
        page.type(f"echo after-{number}-$((1+1))\n")
        page.shows(f"after-{number}-2", 20)
        page.live()
    lines = page.text().splitlines()
    for number in range(3):
        assert lines.count(f"round-{number}-2") == 1
        assert lines.count(f"after-{number}-2") == 1


def test_an_ended_session(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build")).live()
    page.type("echo last words; exit 3\n")
    page.says("#activity", "ended (3)")
    page.says("#notice", "exit code 3")
    page.says("#connection", "ended")
    page.shows("last words")
    page.picture("ended")


def test_a_wrong_token(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build", token="x" * 43))
    page.says("h1", "no longer valid")
    page.picture("wrong-token")
    bare = tab().open(running.url)
    bare.says("h1", "needs its link")


def test_nothing_there_and_then_something(gateway: Place, tab: OpenTab) -> None:
    page = tab(color_scheme="light").open(gateway.link())
    page.says("h1", "No sessions yet")
    page.picture("empty-light")
    gateway.session("fresh")
    gateway.post("/api/v1/rescan")
    page.live()
    page.says("#name", "fresh")
    gateway.end("fresh")


def test_a_gateway_that_goes_while_nothing_is_open(place: Place, tab: OpenTab) -> None:
    place.start()
    page = tab().open(place.link())
    page.says("h1", "No sessions yet")
    place.stop()
    page.says("h1", "does not answer")
    place.start()
    page.says("h1", "No sessions yet")


def test_a_name_that_is_not_there(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("absent"))
    page.says("h1", "No such session")
    time.sleep(3.5)  # the list of sessions has been looked at again, and stays out of sight
    page.says("h1", "No such session")
    page.page.click("text=All sessions")
    page.says(".card", "build")


def test_several_sessions(running: Place, tab: OpenTab) -> None:
    running.session("logs")
    running.post("/api/v1/rescan")
    running.sidecar("logs")
    page = tab().open(running.link())
    page.says(".cards", "logs")
    page.picture("sessions")
    page.page.click(".card:has-text('build')")
    page.live()
    page.type("echo in-build\n")
    page.shows("in-build")
    page.page.click("#picker")
    page.picture("picker")
    page.page.click("#menu >> text=logs")
    page.live()
    page.says("#name", "logs")
    page.type("echo in-logs\n")
    page.shows("in-logs")
    assert "in-build" not in page.text()
    assert page.page.url.endswith("#/logs")


def test_a_viewer_watches(running: Place, tab: OpenTab) -> None:
    viewer = tab().open(running.link("build") + "&mode=view").live()
    viewer.type("echo intruder\n")
    other = tab().open(running.link("build")).live()
    other.type("echo from-the-other\n")
    viewer.shows("from-the-other")
    assert "intruder" not in viewer.text()


def test_colours_follow_the_system_until_chosen(running: Place, tab: OpenTab) -> None:
    page = tab(color_scheme="light").open(running.link("build")).live()
    theme = "document.documentElement.dataset.theme"
    assert page.page.evaluate(theme) == "light"
    page.type("ls --color=always /\n")
    page.shows("usr")
    page.picture("desktop-light")
    page.page.emulate_media(color_scheme="dark")
    until(lambda: page.page.evaluate(theme) == "dark", "the page to turn dark")
    page.page.click("#theme")
    assert page.page.evaluate(theme) == "light"
    page.page.reload()
    page.live()
    assert page.page.evaluate(theme) == "light"


def test_the_phone_has_the_keys_it_lacks(running: Place, tab: OpenTab) -> None:
    page = tab(**PHONE).open(running.link("build")).live()
    page.tap()
    page.type("echo first\n")
    page.shows("\nfirst")
    page.page.tap("[data-key=up]")
    page.type("\n")
    until(lambda: page.text().count("\nfirst") == 2, "the arrow to fetch the last command")
    page.type("sleep 60\n")
    page.says("#activity", "running")
    page.page.tap("[data-modifier=ctrl]")
    page.picture("phone-dark")
    page.type("c")
    page.shows("^C")
    assert page.page.get_attribute("[data-modifier=ctrl]", "aria-pressed") == "false"
    page.type("echo la")
    page.page.tap("[data-key='-']")
    page.type("la\n")
    page.shows("\nla-la")
    # The cells end above the key row.
    cells = page.page.locator(".xterm-screen").bounding_box()
    keys = page.page.locator("#keys").bounding_box()
    assert cells is not None
    assert keys is not None
    assert cells["y"] + cells["height"] <= keys["y"] + 1
    assert cells["x"] + cells["width"] <= 390


def test_a_finger_scrolls(running: Place, tab: OpenTab) -> None:
    page = tab(**PHONE).open(running.link("build")).live()
    page.tap()
    page.type("seq 300\n")
    page.shows("\n300")
    top = "holdfast.terminal.buffer.active.viewportY"
    before = page.page.evaluate(top)
    cdp = page.context.new_cdp_session(page.page)
    for kind, y in [("Start", 200), *[("Move", y) for y in range(210, 501, 10)], ("End", None)]:
        points = [] if y is None else [{"x": 195, "y": y}]
        cdp.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    until(lambda: page.page.evaluate(top) < before - 5, "the scrollback to move")


def test_a_keyboard_on_the_screen_takes_its_part(running: Place, tab: OpenTab) -> None:
    page = tab(**PHONE).open(running.link("build")).live()
    page.tap()
    page.type("true\n")
    until(lambda: page.size[0] < 60, "the phone to lead")
    columns, rows = page.size
    page.page.set_viewport_size({"width": 390, "height": 480})
    until(lambda: page.size[0] == columns and page.size[1] < rows, "fewer rows")
    box = page.page.locator("#keys").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 481
    page.picture("phone-keyboard")


def test_programs_questions_are_not_answered_here(running: Place, tab: OpenTab) -> None:
    """Nor is the clipboard touched: the sidecar answers, once, for everybody."""
    sent: list[Input] = []

    def watch(payload: str | bytes) -> None:
        if isinstance(payload, bytes):
            sent.extend(f for f in Decoder().feed(payload) if isinstance(f, Input))

    page = tab()
    page.page.on("websocket", lambda ws: ws.on("framesent", watch))
    page.open(running.link("build")).live()
    page.type("echo ready-$((1+1))\n")
    page.shows("ready-2")
    state = "/api/v1/sessions/build/state"
    until(lambda: running.get(state).json["activity"] == "prompt", "the shell to be ready")
    before = len(sent)
    assert before > 0
    questions = (
        "\\033[c\\033[>c\\033[=c\\033[6n\\033[5n\\033[?6n\\033[?2026$p\\033[>q\\033[18t\\033[14t"
    )
    strings = "\\033]10;?\\007\\033]11;?\\007\\033]4;1;?\\007\\033P$qm\\033\\\\\\033]52;c;aGk=\\007"
    quietly = f"stty -echo; printf '{questions}{strings}'; read -rs -t 1 -d X; stty echo"
    body = {"command": f"{quietly}; echo; echo asked", "timeout": 10}
    answer = running.post("/api/v1/sessions/build/exec", body)
    assert answer.status == 200, answer.body
    page.shows("\nasked")
    time.sleep(0.2)
    assert [frame.data for frame in sent[before:]] == []


def test_a_flood_leaves_the_page_alive_and_whole(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build")).live()
    page.type("seq 1 3000000; echo flood-$((1+1))\n")
    page.shows("flood-2", 90)
    # The last screen is exact, however much was skipped on the way to it.
    tail = page.text().rstrip().splitlines()
    end = tail.index("flood-2")
    assert tail[end - 30 : end] == [str(number) for number in range(2999971, 3000001)]
    page.type("echo still-here\n")
    page.shows("\nstill-here")


@pytest.mark.timed
def test_a_flood_can_be_stopped_from_the_page(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build")).live()
    page.type("yes holdfast\n")
    page.says("#connection", "catching up")
    began = time.monotonic()
    page.page.keyboard.press("Control+c")
    state = "/api/v1/sessions/build/state"
    until(lambda: running.get(state).json["activity"] == "prompt", "the flood to stop", 10)
    assert time.monotonic() - began < 3
    page.says("#connection", "live", 30)
    page.says("#activity", "at prompt")
    page.type("echo calm\n")
    page.shows("\ncalm")


def test_a_hostile_title_cannot_harm(running: Place, tab: OpenTab) -> None:
    page = tab().open(running.link("build")).live()
    page.type("printf '\\033]2;<img src=x onerror=alert(1)>%0500d\\007' 7\n")
    page.says("#title", "<img src=x")
    assert page.page.locator("#title img").count() == 0
    bar = page.page.locator(".bar").bounding_box()
    assert bar is not None
    assert bar["width"] <= 1280
    page.picture("long-title")


def test_everything_can_be_named(running: Place, tab: OpenTab) -> None:
    """Each control has a name for those who do not see it, and the page loads nothing foreign."""
    asked: list[str] = []
    page = tab(**PHONE)
    page.page.on("request", lambda request: asked.append(request.url))
    page.open(running.link("build")).live()
    nameless = page.page.evaluate(
        """() => [...document.querySelectorAll('button:not([hidden])')]
          .filter((b) => !(b.getAttribute('aria-label') || b.textContent.trim()))
          .map((b) => b.outerHTML)"""
    )
    assert nameless == []
    own = re.compile(rf"(http|ws)://127\.0\.0\.1:{running.port}/|data:")
    assert [url for url in asked if not own.match(url)] == []
