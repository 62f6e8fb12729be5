"""One drain, and on the node all that people have open: each goes on, alive, on the other node."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pytest

from e2e.cluster import build
from e2e.cluster.running import running
from e2e.lab import Lab, Session, until
from e2e.movers import (
    Process,
    await_agents,
    draining,
    gone,
    pod_uid,
    processes,
)

pytestmark = pytest.mark.long

# Answers `check` in its terminal, and until then does what the script after it says.
ANSWERING: Final = """
import hashlib, itertools, os, sys, threading, time

def numbers_in(path):
    with open(path) as lines:
        found = [int(line) for line in lines.read().split("\\n")[:-1]]
    return found == list(range(len(found))) and len(found)

def write_on(path):
    with open(path, "w", buffering=1) as out:
        for n in itertools.count():
            out.write(f"{n}\\n")
            time.sleep(0.01)
"""
WRITER: Final = """
threading.Thread(target=write_on, args=("/root/written",), daemon=True).start()
print("ready")
for line in sys.stdin:
    first = numbers_in("/root/written")
    time.sleep(0.3)
    print("verdict", bool(first and numbers_in("/root/written") > first), flush=True)
"""
DAEMON: Final = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    write_on("/root/daemon")
os.wait()
print("ready")
for line in sys.stdin:
    first = numbers_in("/root/daemon")
    time.sleep(0.3)
    print("verdict", bool(first and numbers_in("/root/daemon") > first), flush=True)
"""
GHOST: Final = """
made = os.urandom(10 << 20)
held = open("/root/ghost", "wb+")
held.write(made)
held.flush()
os.unlink("/root/ghost")
digest = hashlib.sha256(made).hexdigest()
del made
print("ready")
for line in sys.stdin:
    held.seek(0)
    whole = hashlib.sha256(held.read()).hexdigest() == digest
    held.write(b"more")
    held.flush()
    size = os.fstat(held.fileno()).st_size
    print("verdict", whole and size == (10 << 20) + 4 and not os.path.exists("/root/ghost"))
    sys.stdout.flush()
"""
# Polls a server over one connection and over a new one in turn; it counts, so both know how many.
POLLING: Final = """
import http.client, subprocess, sys, threading, time
server = subprocess.Popen(sys.argv[1:])
seen, wrong = 0, []

def ask(line):
    line.request("GET", "/")
    return int(line.getresponse().read())

def poll():
    global seen
    kept = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
    while not wrong:
        try:
            line = kept if seen % 2 else http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
            said = ask(line)
            if line is not kept:
                line.close()
            if said != seen + 1:
                wrong.append(f"{said} after {seen}")
            seen = said
        except ConnectionRefusedError:
            if seen:
                wrong.append("refused")
        except Exception as error:
            wrong.append(repr(error))
        time.sleep(0.02)

threading.Thread(target=poll, daemon=True).start()
while seen < 10 and not wrong:
    time.sleep(0.05)
print("ready", flush=True)
for line in sys.stdin:
    before = seen
    time.sleep(0.5)
    print("verdict", seen > before and server.poll() is None and not wrong, wrong, flush=True)
"""
NODE: Final = """
let count = 0;
require("http").createServer((_, answer) => answer.end(String(++count))).listen(8080, "127.0.0.1");
"""
# Each object says in which epoch it was made: only a build that moved has both. It lasts longer
# than the others take to leave.
MAKEFILE: Final = """
all: $(patsubst %.c,%.o,$(wildcard *.c))
%.o: %.c
\tgcc -O2 -c $< -o $@ && sleep 1.2 && cat $(HOLDFAST_EPOCH_FILE) >> epochs && echo >> epochs
"""
SET_OUT: Final = r"""
cd; printf %s "$1" > Makefile
{
  echo '#include <stdio.h>'
  for n in {1..300}; do
    echo "static int g$n(int a) { return printf(\"%d\", a * $n % 97); } int (*h$n)(int) = g$n;"
  done
} > source
for n in {1..60}; do cp source f$n.c; done
exec bash --norc
"""


@dataclass
class Case:
    """`begin` until `ready` is on the screen; `end` and then `good` is, if all of it moved."""

    name: str
    command: tuple[str, ...]
    ready: str
    good: str
    begin: Callable[[Session], object] = lambda _: None
    end: Callable[[Session], object] = lambda session: session.type("check")
    steady: bool = True  # its processes are the same all the time
    image: str = ""  # else the workbench
    session: Session = field(init=False)
    before: dict[int, Process] = field(init=False)


def typing(*lines: str) -> Callable[[Session], None]:
    def act(session: Session) -> None:
        for line in lines:
            session.type(line)

    return act


def keys(text: str, *names: str) -> Callable[[Session], None]:
    def act(session: Session) -> None:
        if text:
            session.lab.holdfast("send", session.name, text)
        session.lab.holdfast("send", session.name, "--keys", " ".join(names))

    return act


def both(*acts: Callable[[Session], object]) -> Callable[[Session], None]:
    def act(session: Session) -> None:
        for one in acts:
            one(session)

    return act


def in_vim(session: Session) -> None:
    session.type("vim.tiny -u NONE -N /root/note")
    session.await_text("[New]")
    session.lab.holdfast("send", session.name, "ifirst line")
    session.lab.holdfast("send", session.name, "--keys", "Enter")
    session.lab.holdfast("send", session.name, "second")


def in_tmux(session: Session) -> None:
    session.type("tmux -f /dev/null new -s inner 'bash --norc'")
    session.await_text("[inner]")
    session.type("echo inner-$((6*7))")


def with_jobs(session: Session) -> None:
    """Stopped, gone on with, and interrupted."""
    session.type("echo kept-$x; sleep 1001")
    session.await_text("kept-42")
    keys("", "C-z")(session)
    session.await_text("Stopped")
    session.type("fg")
    until(lambda: session.screen().count("sleep 1001") == 3, "it is in the foreground again")
    keys("", "C-c")(session)
    session.type("echo over-$?")


BUILT_WITHIN: Final = 90.0
SHELL: Final = ("bash", "--norc")
ECHO: Final = "python3", "-u", "-c"
JOBS: Final = r"kept-42\n(.*\n)*.*Stopped(.*\n)*.*over-130"

CASES: Final = (
    Case("ask", SHELL, "name? ", r"hello-world-42\n(.*\n)*.*Running.*\n.*Running",
         typing("x=42; sleep 1000 & sleep 1001 & read -p 'name? ' n; echo hello-$n-$x; jobs"),
         typing("world")),
    Case("repl", ("python3", "-q"), "made 209715200", "same True",
         typing("import os, hashlib; b = os.urandom(200 << 20); d = hashlib.sha256(b).digest()",
                "print('made', len(b))"),
         typing("print('same', hashlib.sha256(b).digest() == d)")),
    Case("editor", SHELL, "second", r"first line\nsecond line\nsaved-0", in_vim,
         both(keys(" line", "Escape"), typing(":wq"),
              typing("clear; cat /root/note; echo saved-$?"))),
    Case("node", (*ECHO, POLLING, "node", "-e", NODE), "ready", "verdict True"),
    Case("go", (*ECHO, POLLING, "goserver", "127.0.0.1:8080"), "ready", "verdict True"),
    Case("redis", SHELL, "filled-1-20000", "kept-5439-20000",
         typing("redis-server --save '' --daemonize yes >/dev/null; sleep 1; f=$(redis-cli eval"
                " 'for i=1,20000 do redis.call(\"set\",\"k\"..i,i*7) end return 1' 0);"
                " echo filled-$f-$(redis-cli dbsize)"),
         typing("echo kept-$(redis-cli get k777)-$(redis-cli dbsize)")),
    Case("tmux", SHELL, "inner-42", "inner-42", in_tmux,
         both(keys("", "C-b", "d"), lambda session: session.await_text("detached"),
              typing("clear; tmux attach -t inner"))),
    Case("daemon", (*ECHO, ANSWERING + DAEMON), "ready", "verdict True"),
    Case("ghost", (*ECHO, ANSWERING + GHOST), "ready", "verdict True"),
    Case("writer", (*ECHO, ANSWERING + WRITER), "ready", "verdict True"),
    Case("build", ("bash", "-c", SET_OUT, "-", MAKEFILE),
         "begun", "built-0-60-12",
         typing("make -j2 >log 2>&1 & sleep 3; ls f1.o && echo be''gun"),
         typing("wait %1; echo built-$?-$(ls *.o | wc -l)-$(sort -u epochs | tr -d '[:space:]')"),
         steady=False),
    Case("busybox", ("sh",), "begun", JOBS,  # its shell holds /dev/tty open
         typing("x=42; sleep 1000 & echo be''gun"), with_jobs, image=build.BUSYBOX),
    Case("within", SHELL, "begun", JOBS,
         typing("bash --norc", "x=42; sleep 1000 & echo be''gun"), with_jobs),
)  # fmt: skip


@pytest.fixture(scope="session")
def workbench(lab: Lab) -> str:
    """An image with compilers, editors and servers, in every node."""
    running().load(build.workbench_image())
    return build.WORKBENCH


@pytest.mark.faults(32)
@pytest.mark.timeout(400)
def test_a_drain_moves_all_that_people_have_open(lab: Lab, workbench: str) -> None:
    node = lab.away()
    for case in CASES:
        case.session = lab.begin(case.name, *case.command, image=case.image or workbench, node=node)
    at_once(lambda case: begun(case, node))
    with draining(lab, node) as drain:
        drain.succeeds()
        at_once(lambda case: went_on(case, node))
        for case in CASES:
            gone(lab, f"{case.name}-1")
    await_agents(lab)


def at_once(act: Callable[[Case], None]) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(act, CASES))


def begun(case: Case, node: str) -> None:
    session = case.session
    session.await_ready()
    case.begin(session)
    session.await_text(case.ready)
    assert session.node == node
    case.before = processes(pod_uid(session.lab, session.pod))
    assert case.before


def went_on(case: Case, node: str) -> None:
    session = case.session
    session.await_epoch(2)
    assert session.node != node
    here = pod_uid(session.lab, session.pod)
    if case.steady:  # CRIU, which restored it there, ends a moment after it runs
        until(lambda: set(processes(here)) == set(case.before), f"{case.name} has its PIDs", 10)
    after = processes(here)
    for pid in set(after) & set(case.before):
        same = after[pid].command == case.before[pid].command
        if same:
            assert after[pid].environment == case.before[pid].environment
    case.end(session)
    until(lambda: re.search(case.good, session.screen()), f"{case.good!r} of {case.name}",
          BUILT_WITHIN)  # fmt: skip
