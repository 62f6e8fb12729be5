"""The page where people sign in: a real browser, the real routes and a real session; who may do
what is made up (page_kit.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

import gateway_kit
from browser_kit import CALM, DESKTOP, PHONE, Tab, browser
from gateway_kit import ROOT, Place, until
from holdfast_wire.errors import Forbidden
from page_kit import ALL, LOOK, Cluster, cluster, jwt, told_of
from sidecar_kit import Client

OpenTab = Callable[..., Tab]
SUPPORT = ROOT / "tests/support"
BUILD = "/#/team/build"
FAINT, WATCH = ((SUPPORT / name).read_text() for name in ("faint.js", "watch.js"))


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def session() -> Iterator[Place]:
    with gateway_kit.place() as here:
        here.session("build")
        here.start()
        here.sidecar("build")
        yield here


@pytest.fixture(scope="module")
def shared(session: Place) -> Iterator[Cluster]:
    with cluster(session) as made:
        yield made


@pytest.fixture
def team(shared: Cluster) -> Cluster:
    shared.reset()
    return shared


@pytest.fixture
def tab(chrome: Browser) -> Iterator[OpenTab]:
    opened: list[Tab] = []

    def make(**settings: Any) -> Tab:
        context = chrome.new_context(**{**DESKTOP, **CALM, **settings})
        opened.append(Tab(context))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()
    assert [fault for one in opened for fault in one.faults] == []


def sign_in(page: Tab, token: str, *, kept: bool = False) -> Tab:
    page.says("h1", "Sign in")
    page.page.fill("#token", token)
    if kept:
        page.page.check("#keep")
    page.page.click("form .primary")
    until(lambda: not page.page.locator("#signin").is_visible(), "the sign-in to go")
    return page


def test_a_link_signs_nobody_in(team: Cluster, tab: OpenTab) -> None:
    """Attack 44: a link with somebody else's token, before and after one is signed in."""
    page = tab().open(f"{team.url}/#token={team.bo}")
    page.says("h1", "Sign in")
    assert "token" not in page.page.url
    kept = "[...Object.values(sessionStorage), ...Object.values(localStorage)].join()"
    assert team.bo not in page.page.evaluate(kept)
    sign_in(page, team.ana)
    page.says(".groups", "build")
    page.page.evaluate(f"location.hash = '#token={team.bo}'")
    until(
        lambda: "token" not in page.page.evaluate("location.href"),
        "the token to leave the address bar",
    )
    page.page.goto(team.url + "/#/")
    page.page.click("#account")
    page.says("#account-menu", "ana")
    assert team.bo not in page.page.evaluate(kept)


def test_a_person_signs_in_picks_a_session_and_types(team: Cluster, tab: OpenTab) -> None:
    team.team.others = told_of(6)
    page = tab().open(team.url)
    page.says("#signin code", "kubectl create token NAME --audience holdfast")
    page.page.fill("#token", "no token ü")
    page.page.click("form .primary")
    page.says(".complaint", "not a token")
    page.page.fill("#token", jwt(sub="eve"))
    page.page.click("form .primary")
    page.says(".complaint", "not valid here")
    sign_in(page, f"{team.ana[:20]}\n{team.ana[20:]}")
    page.says(".groups", "job-000")
    page.page.fill("#filter", "bui team")
    page.says(".chooser header .count", "1 of 7")
    page.page.keyboard.press("Enter")
    page.live()
    assert page.page.url.endswith(BUILD)
    page.type("echo typed-$((40+2))\n")
    page.shows("typed-42")
    page.says("#namespace", "team")
    kept = "Object.keys(sessionStorage).length + Object.keys(localStorage).length"
    assert page.page.evaluate(kept) == 0, "the token is in memory alone"
    page.page.go_back()
    page.says(".chooser header .count", "1 of 7")
    page.page.go_forward()
    page.live()
    page.shows("typed-42")
    page.page.click("#account")
    page.says("#account-menu", "ana")
    page.page.click("text=Sign out")
    page.says("h1", "Sign in")
    assert "build" not in page.page.url
    page.page.reload()
    page.says("h1", "Sign in")


def test_a_token_that_is_kept_expires_and_is_forgotten(team: Cluster, tab: OpenTab) -> None:
    page = sign_in(tab().open(team.url + BUILD), team.ana, kept=True).live()
    page.type("echo before-$((1+1))\n")
    page.shows("before-2")
    page.page.reload()
    page.live()
    page.shows("before-2")
    page.page.evaluate(WATCH)
    team.expire(team.ana)
    page.says(".complaint", "not valid here")
    assert "before-2" in page.text(), "the session is still there behind the dialog"
    with Client(team.team.real._state / "sessions/build/sidecar.sock") as other:
        other.ask("send", text="echo meanwhile-$((1+1))\n")
    team.door.actors.update(team.tokens)
    sign_in(page, team.ana, kept=True).live()
    page.shows("meanwhile-2")
    assert page.text().count("\nbefore-2") == 1
    assert "reset" not in page.page.evaluate("seen"), "resumed at its place"
    page.page.click("#account")
    page.page.click("text=Sign out")
    page.says("h1", "Sign in")
    assert page.page.evaluate("sessionStorage.length") == 0


def test_openid_connect(team: Cluster, tab: OpenTab) -> None:
    page = tab().open(team.url + "/?code=stolen&state=guessed" + BUILD[1:])
    page.says(".complaint", "not begun here")
    assert "code" not in page.page.url
    reached = "(url) => fetch(url, { mode: 'no-cors' }).then(() => true, () => false)"
    discovery = f"{team.issuer.issuer}/.well-known/openid-configuration"
    assert page.page.evaluate(reached, discovery) is True
    assert page.page.evaluate(reached, discovery.replace("127.0.0.1", "localhost")) is False
    team.issuer.spoil = {"nonce": "of another sign-in"}
    page.page.click("text=Continue with")
    page.page.wait_for_selector(".complaint:has-text('not of this sign-in')")
    team.issuer.spoil = {}
    page.page.click("text=Continue with")
    page.page.wait_for_selector("#connection[data-state=connected]")
    assert page.page.url == team.url + BUILD, "back where one wanted to go, without the code"
    page.page.click("#account")
    page.says("#account-menu", "ana@example.com")


def test_who_comes_by_a_proxy_is_signed_in(team: Cluster, tab: OpenTab) -> None:
    page = tab(extra_http_headers={"X-Forwarded-User": "ana@example.com"}).open(team.url)
    page.says(".groups", "build")
    assert page.page.locator("#signin").is_hidden()
    assert page.page.locator("#account").is_hidden(), "it is the proxy's to sign one out"


def size_of(session: Place) -> tuple[int, int]:
    told = session.get("/api/v1/sessions/build").json
    return told["columns"], told["rows"]


def test_who_may_look_may_not_type(team: Cluster, tab: OpenTab, session: Place) -> None:
    bo = "system:serviceaccount:team:bo"
    page = sign_in(tab(**PHONE).open(team.url + BUILD), team.bo).live()
    page.says("#standing", "You may look, not type.")
    page.says("#standing", "sessions/type")
    assert not page.page.locator("#keys").is_visible()
    before = size_of(session)
    until(lambda: page.size == before, "the session, in its own size")
    page.type("echo intruder\n")
    page.page.click("#panel-open")
    page.says("#panel-processes", "bash")
    page.page.click("#tab-timeline")
    page.says("#panel-timeline", "came to watch")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert size_of(session) == page.size == before, "neither looking nor a sheet resizes it"
    assert "intruder" not in page.text()
    page.page.click("#panel-close")
    page.page.evaluate(WATCH)
    team.team.rights[bo] = ALL
    page.page.click("#standing button")
    until(lambda: page.page.locator("#standing").is_hidden(), "the right to type")
    team.cut(bo, LOOK, Forbidden("bo may not create sessions/type", "ask for it"))
    page.says("#standing", "You may look, not type.")
    page.live()
    assert "reset" not in page.page.evaluate("seen")
    team.cut(bo, frozenset(), Forbidden("bo may not get sessions/observe", "ask for it"))
    page.says("h1", "Not for you to see")
    page.says(".message", "sessions/observe")
    page.page.click("text=All sessions")
    page.says("h1", "No sessions to see")


def test_processes_ports_the_turn_and_the_timeline(
    team: Cluster, tab: OpenTab, session: Place
) -> None:
    page = sign_in(tab().open(team.url + BUILD), team.ana).live()
    page.page.click("#panel-open")
    page.says("#panel-processes", "reading the terminal")
    page.page.click("#terminal")
    page.type("timeout 9 yes >/dev/null &\n")
    page.says(".processes", "yes")
    page.type("python3 -m http.server 0 --bind 127.0.0.1 >/dev/null 2>&1 &\n")
    page.says(".ports", "127.0.0.1:")
    page.says(".processes", "python3 -m http.server")
    page.says(".load", "% cpu")
    page.picture("processes")
    page.type("kill %1 %2\n")
    until(lambda: page.page.locator(".ports li").count() == 0, "the port to go")
    page.page.focus("#tab-processes")
    page.page.keyboard.press("ArrowRight")
    page.says("#panel-timeline", "ana (team) typed")
    with Client(session.folder("build") / "sidecar.sock") as dana:
        dana.attach(modality="ssh", actor="dana")
        dana.ask("take", **{"as": {"actor": "dana", "modality": "ssh"}})
        page.says("#standing", "dana has the turn" if os.geteuid() == 0 else "has the turn")
        page.page.click("text=Take it")
        until(lambda: page.page.locator("#standing").is_hidden(), "the turn")
        page.says("#panel-timeline", "ana took the turn")
    page.says("#panel-timeline", "left")
    page.page.click("#tab-about")
    page.says("#panel-about", "node-b")
    page.page.keyboard.press("Escape")
    assert not page.page.locator("#panel").is_visible()


def test_the_turn_is_asked_for_and_given(team: Cluster, tab: OpenTab) -> None:
    team.team.rights[team.tokens[team.bo]] = ALL
    ana = sign_in(tab().open(team.url + BUILD), team.ana).live()
    ana.type("echo mine\n")
    bo = sign_in(tab(**PHONE).open(team.url + BUILD), team.bo, kept=True).live()
    bo.says("#standing", "ana (team) has the turn.")
    bo.picture("without-phone")
    bo.page.click("text=Ask for it")
    bo.says("#standing", "You have asked for it.")
    ana.says("#standing", "bo (team) asks for the turn.")
    ana.picture("asked")
    bo.picture("asking-phone")
    ana.page.click("text=Not now")
    until(lambda: ana.page.locator("#standing").is_hidden(), "the line to go")
    ana.type("echo still-$((6*7))\n")
    ana.shows("still-42")
    bo.page.reload()  # who left asks no more, and may ask again
    bo.live().page.click("text=Ask for it")
    ana.page.click("text=Give it")
    ana.says("#standing", "bo (team) has the turn.")
    until(lambda: bo.page.locator("#standing").is_hidden(), "the turn")
    bo.page.locator(".xterm-helper-textarea").focus()
    bo.type("echo given-$((6*7))\n")
    ana.shows("given-42")
    ana.page.click("#panel-open")
    ana.page.click("#tab-timeline")
    ana.says("#panel-timeline", "ana (team) gave the turn to bo (team)")
    ana.says("#panel-timeline", "bo (team) asked for the turn")
    ana.page.click("text=Take it")


def test_what_is_not_there_or_too_new(team: Cluster, tab: OpenTab) -> None:
    page = sign_in(tab().open(team.url + "/#/team/absent"), team.ana)
    page.says("h1", "No such session")
    page.page.evaluate("location.hash = '#/../../etc'")
    page.says(".message", "names none")
    team.team.speaks = False
    page.page.evaluate("location.hash = '#/team/build'")
    page.says("h1", "differ")
    page.says(".message", "speaks version 3")
    page.says(".message button", "Reload")


def test_a_gateway_that_stops_is_not_noticed(team: Cluster, tab: OpenTab) -> None:
    page = sign_in(tab().open(team.url + BUILD), team.ana).live()
    page.type("echo before-$((2+2))\n")
    page.shows("before-4")
    page.page.evaluate(WATCH)
    for number in range(3):
        team.stop_streams()
        page.type(f"echo after-{number}-$((1+1))\n")
        page.shows(f"\nafter-{number}-2")
    assert page.page.evaluate("seen") == [], "no flash, no word, no screen drawn anew"
    assert page.text().count("\nafter-1-2") == 1


def test_a_sleeping_session_is_woken_with_its_progress(team: Cluster, tab: OpenTab) -> None:
    team.team.phase = "Suspended"
    page = sign_in(tab(**PHONE).open(team.url + BUILD), team.ana)
    page.says("#notice", "Waking up")
    page.says("#notice [aria-current=step]", "stored")
    page.says("#activity", "suspended")
    team.team.phase = "Restoring"
    page.says("#notice [aria-current=step]", "restoring")
    team.team.phase = "Running"
    page.live()
    until(lambda: page.page.locator("#notice").is_hidden(), "the notice to go")


def test_a_suspended_session_is_woken_by_hand(team: Cluster, tab: OpenTab) -> None:
    """Attack 37: to open the page wakes nothing; a button does, for whoever has the right."""
    team.team.phase = "Suspended"
    team.team.suspended = {"wakes": "asked", "since": "2026-11-18T20:00:00Z", "may": False}
    page = sign_in(tab().open(team.url + BUILD), team.ana)
    page.says("#notice", "Somebody suspended it, 2026-11-18T20:00:00Z.")
    page.says("#notice", "the right to create sessions/wake")
    team.team.suspended["may"] = True
    page.page.click("#notice button")
    page.says("#notice button", "Wake it")
    assert team.team.woken == []
    page.page.click("#notice button")
    page.says("#notice", "Waking up")
    assert team.team.woken == ["system:serviceaccount:team:ana"]
    team.team.phase = "Running"
    page.live()
    until(lambda: page.page.locator("#notice").is_hidden(), "the notice to go")


def test_a_session_that_moves_or_is_stored(team: Cluster, tab: OpenTab) -> None:
    page = sign_in(tab().open(team.url + BUILD), team.ana).live()
    gone = page.page.locator("#notice")
    team.say("saving")
    page.says("#notice", "Being stored")
    page.says("#activity", "being stored")
    team.say("stayed")
    until(gone.is_hidden, "the notice to go")
    page.says("#activity", "at prompt")
    team.say("moving")
    page.says("#notice [aria-current=step]", "leaving")
    team.team.phase = "Moving"
    team.stop_streams()
    page.says("#notice [aria-current=step]", "on its way")
    page.type("echo typed-on-the-way-$((1+1))\n")
    team.team.phase = "Running"
    page.shows("\ntyped-on-the-way-2")
    until(gone.is_hidden, "the notice to go")
    page.says("#activity", "at prompt")


def test_two_hundred_sessions_by_keyboard(team: Cluster, tab: OpenTab) -> None:
    team.team.others = told_of(199)
    long = {"session": "x" * 63, "namespace": "n" * 63, "node": "m" * 63, "title": "t" * 300}
    team.team.others[2].update(long)
    page = sign_in(tab(**PHONE).open(team.url), team.ana)
    page.says(".chooser header .count", "200")
    assert page.page.locator(".card").count() == 200
    edges = "[...document.querySelectorAll('.page *')].map((e) => e.getBoundingClientRect().right)"
    assert page.page.evaluate(f"Math.max(...{edges})") <= 390
    widths = "[...document.querySelectorAll('.card b')].map((e) => e.getBoundingClientRect().width)"
    assert page.page.evaluate(f"Math.min(...{widths})") > 40, "the longest leave room for a name"
    page.page.keyboard.press("/")
    assert page.page.evaluate("document.activeElement.id") == "filter"
    page.type("password")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    where = "document.activeElement.closest('li').dataset.key"
    focused = page.page.evaluate(where)
    team.team.others[0]["state"]["sentence"] = "changed (pid 1) is running."
    asked = page.page.evaluate("performance.getEntriesByType('resource').length")
    more = "performance.getEntriesByType('resource').length"
    until(lambda: page.page.evaluate(more) > asked, "the list to be looked at again")
    assert page.page.evaluate(where) == focused, "what one is at stays"
    page.page.keyboard.press("Escape")
    page.says(".chooser header .count", "200")
    page.page.fill("#filter", "nothing like it")
    page.says(".none", "No session matches")


def test_everything_can_be_named_and_read(team: Cluster, tab: OpenTab) -> None:
    """Names for controls, contrast of text (WCAG AA: 4.5), in both colours, in every view."""
    team.team.others = told_of(9)
    for scheme in ("dark", "light"):
        page = tab(color_scheme=scheme).open(team.url)
        page.says("h1", "Sign in")
        assert page.page.evaluate(FAINT) == []
        sign_in(page, team.ana).says(".groups", "build")
        assert page.page.evaluate(FAINT) == []
        page.page.click(".card:has-text('build')")
        page.live()
        page.page.click("#panel-open")
        page.says("#panel-processes", "pid")
        for name in ("processes", "timeline", "about"):
            page.page.click(f"#tab-{name}")
            page.says(f"#panel-{name}", "bash" if name != "timeline" else "attached")
            assert page.page.evaluate(FAINT) == []
    nameless = page.page.evaluate(
        """() => [...document.querySelectorAll('button, input, a, [role=tabpanel], aside, dialog')]
          .filter((e) => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
                           || e.labels?.length || e.textContent.trim()))
          .map((e) => e.outerHTML)"""
    )
    assert nameless == []
