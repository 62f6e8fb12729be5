"""Jobs under a real keeper: asked for in its file, and told of there."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest

from holdfast_sidecar.hold import EventKind
from holdfast_sidecar.jobs_file import JobsFile, Slot, Told, specification

from .holding import Session, Start, eventually


class Keeper:
    def __init__(self, session: Session, file: JobsFile) -> None:
        self.session, self.file = session, file
        self.like = 0

    async def ask(self, index: int, *argv: str, cwd: str = "", **env: str) -> None:
        spec = specification(self.like, argv, cwd, env, self.file.spec_bytes)
        self.file.prepare(index, f"job{index}", spec)
        self.file.want(index, True)
        await self.session.link.nudge()

    async def told(self, index: int, state: Told = Told.DONE) -> Slot:
        async def look() -> Slot:
            return self.file.slot(index)

        return await eventually(look, lambda slot: slot.state is state, f"{state!r} of {index}")

    def output(self, index: int) -> bytes:
        return self.file.read(index, 0, self.file.ring_bytes)[1]

    async def printed(self, index: int, wanted: bytes) -> None:
        async def look() -> bytes:
            return self.output(index)

        await eventually(look, lambda data: wanted in data, repr(wanted))


@pytest.fixture
async def keeper(start: Start) -> AsyncIterator[Keeper]:
    session = await start("sh", "-c", "cd /usr; export NOT_SEEN=1; read line; exit 5")
    made = Keeper(session, JobsFile(await session.link.jobs()))
    graph = await session.graph_when(
        lambda g: any(p.pid == g.command_pid and p.cwd == "/usr" for p in g.processes), "cd"
    )
    made.like = graph.command_pid
    yield made
    made.file.close()


async def test_it_runs_beside_the_terminal_as_its_shell_would(keeper: Keeper) -> None:
    show = 'pwd; echo "$HOME|$EXTRA|$TERM"; tty; cat; echo wrong >&2; exit 3'
    await keeper.ask(0, "/bin/sh", "-c", show, EXTRA="more")
    told = await keeper.told(0)
    assert (told.status, told.error) == (3 << 8, 0)
    assert told.started <= told.ended
    home = os.getcwd()  # noqa: PTH109 - the fixture's, as `environment` has it
    assert keeper.output(0).decode().splitlines() == [
        "/usr",
        f"{home}|more|xterm",
        "not a tty",
        "wrong",
    ]
    assert keeper.session.terminal.drain() == b""


async def test_what_cannot_run_says_why_as_a_shell_does(keeper: Keeper) -> None:
    await keeper.ask(0, "no-such-program")
    await keeper.ask(1, "/bin/true", cwd="/no/such/folder")
    await keeper.ask(2, "/etc/passwd")
    codes = [os.waitstatus_to_exitcode((await keeper.told(i)).status) for i in range(3)]
    assert codes == [127, 126, 126]
    assert b"cannot run no-such-program: No such file" in keeper.output(0)
    assert b"cannot enter /no/such/folder" in keeper.output(1)


async def test_a_signal_reaches_its_whole_group_and_no_other(keeper: Keeper) -> None:
    await keeper.ask(0, "/bin/sh", "-c", "sleep 600 & echo $!; wait")
    await keeper.ask(1, "sleep", "600")
    await keeper.printed(0, b"\n")
    child = int(keeper.output(0))
    keeper.file.signal(0, signal.SIGTERM)
    await keeper.session.link.nudge()
    told = await keeper.told(0)
    assert os.WTERMSIG(told.status) == signal.SIGTERM
    assert told.signals == told.signalled == 1
    graph = await keeper.session.link.graph()
    assert child not in {p.pid for p in graph.processes}
    assert keeper.file.slot(1).state is Told.RUNNING


async def test_more_than_the_ring_is_read_and_the_last_of_it_kept(keeper: Keeper) -> None:
    ring = keeper.file.ring_bytes
    count = ring // 7 + 100_000
    await keeper.ask(0, "/bin/sh", "-c", f"seq -f %06.0f 1 {count}")
    told = await keeper.told(0)
    assert (told.status, told.head) == (0, 7 * count)
    start, data = keeper.file.read(0, 0, ring)
    assert (start, len(data)) == (7 * count - ring, ring)
    assert data.endswith(b"%06d\n%06d\n" % (count - 1, count))
    lines = data.split(b"\n")[1:-1]
    assert [int(line) for line in lines] == list(range(count - len(lines) + 1, count + 1))


async def test_what_a_job_leaves_behind_can_print_on(keeper: Keeper) -> None:
    late = '(while ! test -e "$HOME/go"; do sleep 0.02; done; echo on) & exit 4'
    await keeper.ask(0, "/bin/sh", "-c", late)
    over = await keeper.told(0, Told.OVER)
    assert os.WEXITSTATUS(over.status) == 4
    await keeper.ask(1, "/bin/sh", "-c", 'touch "$HOME/go"')
    await keeper.told(0)
    assert keeper.output(0) == b"on\n"


async def test_a_place_is_used_again_with_nothing_of_before_in_it(keeper: Keeper) -> None:
    await keeper.ask(0, "echo", "one")
    await keeper.told(0)
    keeper.file.want(0, False)
    await keeper.session.link.nudge()
    free = await keeper.told(0, Told.FREE)
    assert (free.head, free.status, keeper.output(0)) == (0, 0, b"")
    await keeper.ask(0, "printf", "2")
    await keeper.told(0)
    assert keeper.output(0) == b"2"


async def test_it_ends_with_the_session_and_how_is_known(keeper: Keeper) -> None:
    trap = "trap 'echo bye; exit 9' HUP; echo ready; while :; do sleep 0.05; done"
    await keeper.ask(0, "/bin/sh", "-c", trap)
    await keeper.ask(1, "/bin/sh", "-c", "trap '' HUP; echo ready; while :; do sleep 0.05; done")
    for index in range(2):
        await keeper.printed(index, b"ready")
    graph = await keeper.session.link.graph()
    pids = {p.pid for p in graph.processes}
    assert {keeper.file.slot(0).pid, keeper.file.slot(1).pid} <= pids
    keeper.session.terminal.send(b"\n")
    assert (await keeper.session.event(EventKind.EXITED)).code == 5
    assert os.WEXITSTATUS((await keeper.told(0)).status) == 9
    assert keeper.output(0).endswith(b"\nbye\n")
    assert keeper.file.slot(1).state is Told.RUNNING  # nobody was left to say more

    async def left() -> int:
        return len((await keeper.session.link.graph()).processes)

    await eventually(left, lambda count: count == 0, "the stubborn job's end")


async def test_its_last_words_are_not_lost(keeper: Keeper) -> None:
    trap = "trap 'echo bye; exit 9' HUP; echo ready; while :; do sleep 0.05; done"
    await keeper.ask(0, "/bin/sh", "-c", trap)
    await keeper.printed(0, b"ready")
    keeper.session.terminal.send(b"\n")
    await keeper.session.event(EventKind.EXITED)
    assert keeper.output(0).endswith(b"\nbye\n")


async def test_it_stands_still_with_the_session(keeper: Keeper) -> None:
    await keeper.ask(0, "/bin/sh", "-c", "while :; do echo x; sleep 0.01; done")
    await keeper.printed(0, b"x")
    await keeper.session.link.freeze()
    before = keeper.file.slot(0).head
    await keeper.ask(1, "echo", "later")
    assert keeper.file.slot(1).state is Told.FREE
    assert keeper.file.slot(0).head == before
    await keeper.session.link.thaw()
    await keeper.told(1)

    async def printed() -> int:
        return keeper.file.slot(0).head

    await eventually(printed, lambda head: head > before, "more output")


async def test_a_wrong_form_and_stray_signals_harm_nothing(keeper: Keeper) -> None:
    keeper.file.prepare(0, "bad", b"\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xffx")
    keeper.file.want(0, True)
    for _ in range(5):
        await keeper.session.link.nudge()
    told = await keeper.told(0)
    assert os.WEXITSTATUS(told.status) == 126
    assert b"wrong form" in keeper.output(0)
    await keeper.ask(1, "echo", "well")
    await keeper.told(1)
    assert keeper.output(1) == b"well\n"
