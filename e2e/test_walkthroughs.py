"""Two stories, as people and programs live them, with their own clients: OpenSSH, Chromium on a
desk and on a phone, an agent by MCP, a program by HTTP, a person by kubectl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import aiohttp
import pytest
from mcp import Client
from playwright.sync_api import Browser

from browser_kit import DESKTOP, PHONE, Tab, browser
from e2e.cluster.places import SHARED
from e2e.followers import Background, background
from e2e.guests import NAMESPACE, Guests
from e2e.lab import Lab, Session, until
from e2e.movers import MOVED_WITHIN, await_agents, shared
from e2e.pages import signed_in

PATIENCE: Final = 60.0
DETACH: Final = b"\x1cd"
PROMPT: Final = rb"\$ "
OURS: Final = [{"name": "PS1", "value": "$ "}]
PLAIN: Final = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}
IDLE: Final = 60  # seconds, the fewest there are: what is a day for others

# Goes on for as long as nobody stops it, and heeds what is in a file.
BUILD: Final = (
    "n=0; echo plain > flavour; until test -e finished; do n=$((n+1)); "
    "echo step-$n-$(cat flavour).; sleep 0.02; done; echo built-$n"
)


@pytest.fixture(scope="module")
def chromium(guests: Guests) -> Iterator[Browser]:
    with browser(guests.resolver) as started:
        yield started


@pytest.fixture
def aside() -> Iterator[Background]:
    with background() as made:
        yield made


def tab(chromium: Browser, open_here: ExitStack, kind: dict[str, Any]) -> Tab:
    made = Tab(chromium.new_context(**kind, ignore_https_errors=True))
    open_here.callback(made.context.close)
    return made


def steps(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step-(\d+)-", text, re.MULTILINE)]


async def call(agent: Client, session: Session, tool: str, **given: Any) -> dict[str, Any]:
    named = {"session": f"{NAMESPACE}/{session.name}", **given}
    found: dict[str, Any] = (await agent.call_tool(tool, named)).structured_content
    assert "error" not in found, found
    return found


async def job(agent: Client, session: Session, command: str) -> dict[str, Any]:
    """Run beside the terminal, to its end."""
    started = await call(agent, session, "start_job", command=command)
    ended = await call(agent, session, "get_job", job=started["job"]["id"], timeout=30)
    assert ended["complete"], ended
    return ended


async def build_pid(guests: Guests, session: Session) -> int:
    """Of the shell that builds: it was started by the session's own."""
    async with guests.sdk("otto", session.name) as own:
        graph = await own.graph()
    (found,) = [one for one in graph.processes if one.command[:2] == ("bash", "build.sh")]
    return found.pid


async def records(guests: Guests, session: Session) -> list[tuple[str, str, str]]:
    """Kind, actor and modality of all in the journal that acts."""
    async with guests.sdk("otto", session.name) as own:
        journal = await own.journal(limit=1000)
    acts = {"input", "exec", "job"}
    return [(one.kind, one.actor, one.modality) for one in journal if one.kind in acts]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_build_that_outlives_its_client(
    lab: Lab, guests: Guests, chromium: Browser, aside: Background
) -> None:
    """A person over SSH starts a long build; a browser comes late and sees all of it; an agent
    edits a file and runs a command; the person's client is killed, and nothing else notices."""
    session = lab.session("build", "bash", "--norc", container={"env": OURS})
    guests.reached(session)
    wanda, mira = guests["wanda"].actor, guests["mira"].actor
    with ExitStack() as open_here:
        person = guests.ssh.terminal("wanda", f"build.{NAMESPACE}")
        open_here.callback(person.close)
        person.expect(PROMPT, PATIENCE)
        person.type(f"cd /tmp; echo '{BUILD}' > build.sh; bash build.sh\r".encode())
        person.expect(rb"step-150-plain\.\r\n", PATIENCE)
        pid = aside.run(build_pid(guests, session))

        page = signed_in(tab(chromium, open_here, DESKTOP), guests, "otto", "build").live()
        page.shows("step-1-plain.")
        aside.run(_edit_and_run(guests, session))
        page.shows("-sweet.")
        person.process.kill()
        person.process.wait()
        now = max(steps(page.text()))
        until(lambda: max(steps(page.text())) > now + 100, "the build goes on", PATIENCE)
        assert aside.run(build_pid(guests, session)) == pid
        built = aside.run(_finish(guests, session))
        page.shows(f"built-{built}")
        found = steps(page.text())
        assert found == list(range(1, built + 1)), "the browser has every line, once"

        acted = aside.run(records(guests, session))
        assert {one[1:] for one in acted} == {(wanda, "ssh"), (mira, "mcp")}
        assert {one[0] for one in acted if one[1] == wanda} >= {"input"}
        assert {one[0] for one in acted if one[1] == mira} >= {"job", "exec"}
        page.page.click("#panel-open")
        page.page.click("#tab-timeline")
        page.says("#panel-timeline", "wanda")
        page.says("#panel-timeline", "mira")
        assert page.faults == []
    assert session.epoch == 1


async def _edit_and_run(guests: Guests, session: Session) -> None:
    async with guests.agent("mira") as agent:
        seen = await call(agent, session, "observe", graph=True)
        assert seen["state"]["activity"] == "running"
        edited = await job(agent, session, "echo sweet > flavour")
        assert edited["job"]["exit"] == {"code": 0, "signal": None}
        ran = await job(agent, session, "cat flavour; exit 3")
        assert (ran["job"]["exit"]["code"], ran["output"].strip()) == (3, "sweet")


async def _finish(guests: Guests, session: Session) -> int:
    """The agent ends the build, and runs a command where it was; the number of its last step."""
    async with guests.agent("mira") as agent:
        await job(agent, session, "touch finished")
        assert (await call(agent, session, "wait_for", state="prompt", timeout=30))["met"]
        await call(agent, session, "take_turn")
        ran = await call(agent, session, "run", command="pwd; (exit 4)")
        assert (ran["exit_code"], ran["output"].strip()) == (4, "/tmp")
        shown = (await call(agent, session, "observe", scrollback=True))["screen"]
    found = re.search(r"^built-(\d+)$", shown, re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.long
@pytest.mark.timeout(360)
def test_a_job_beside_a_half_typed_line_and_a_phone_hours_later(
    lab: Lab, guests: Guests, chromium: Browser, aside: Background
) -> None:
    """A program runs a job, asked twice, beside what a person has half typed; all leave; the
    session goes to sleep; somebody with a phone finds everything as it was, and goes on."""
    await_agents(lab)
    (SHARED / "ran").unlink(missing_ok=True)
    given = shared()
    given["container"] |= {"env": OURS, "securityContext": PLAIN}
    idle = {"idle": {"afterSeconds": IDLE, "then": "Hibernate"}}
    session = lab.session("desk", "bash", "--norc", spec=idle, **given)
    guests.reached(session)
    (SHARED / "ran").touch()
    (SHARED / "ran").chmod(0o666)
    with ExitStack() as open_here:
        person = guests.attach("wanda", "desk")
        open_here.callback(person.close)
        person.expect(PROMPT, PATIENCE)
        person.type(b"kept=$((6*7)); echo kept-$kept\r")
        person.expect(rb"kept-42\r\n.*\$ ", PATIENCE)
        person.type(b"seq 1000 1099\r")
        person.expect(rb"\n1099\r\n", PATIENCE)
        person.type(b"echo half-")
        person.expect(rb"echo half-", PATIENCE)
        asked = {"command": "echo ran >> /shared/ran; echo done by $0; exit 5", "key": "nightly-1"}
        first, again = (aside.run(_post_job(guests, "desk", asked)) for _ in range(2))
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["id"] == again["id"]
        until(lambda: (SHARED / "ran").read_text() == "ran\n", "the job ran")
        person.expect(rb"mira.* runs", PATIENCE)
        person.expect(rb"ended with 5", PATIENCE)
        until(lambda: session.screen().rstrip().endswith("$ echo half-"), "the half-typed line")
        person.type(DETACH)
        assert person.wait(PATIENCE) == 0

    asleep = session.await_phase("Suspended", IDLE + MOVED_WITHIN)
    assert asleep["epoch"] == 1
    assert (SHARED / "ran").read_text() == "ran\n"

    with ExitStack() as open_here:
        phone = signed_in(tab(chromium, open_here, PHONE), guests, "wanda", "desk")
        phone.shows("kept-42", MOVED_WITHIN)
        session.await_epoch(2)
        phone.live()
        text = phone.text()
        lines = [line.strip() for line in text.split("\n")]
        begin = lines.index("1000") if "1000" in lines else 0
        assert lines[begin : begin + 100] == [str(n) for n in range(1000, 1100)], lines[:20]
        assert "ended with 5" in text
        assert text.rstrip().endswith("$ echo half-")
        phone.page.click("#terminal")
        phone.type("typed-$kept\n")
        phone.shows("half-typed-42")
        assert phone.faults == []
    assert (SHARED / "ran").read_text() == "ran\n", "it ran once"
    acted = {one for one in aside.run(records(guests, session)) if one[0] in ("input", "job")}
    wanda, mira = guests["wanda"].actor, guests["mira"].actor
    assert acted == {
        ("input", wanda, "kubectl"), ("input", wanda, "browser"), ("job", mira, "http"),
    }  # fmt: skip


async def _post_job(guests: Guests, session: str, body: dict[str, str]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {guests['mira'].token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{guests.base(session)}/jobs", json=body, ssl=guests.tls) as answer,
    ):
        assert answer.status == 202, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found
