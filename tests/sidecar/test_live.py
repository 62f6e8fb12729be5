"""What clients of a real session see: a real hold, a real sidecar, real kills."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path

import recorder
from gateway_kit import ROOT, until
from sidecar_kit import Live

# Prints lines of a known sequence for a given time, at a pace that changes, and then waits.
COUNTER = """
import sys, time
end, n = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for _ in range(1 + n % 41):
        sys.stdout.write(f"{n} " + "x" * (n % 61) + "\\n")
        n += 1
    sys.stdout.flush()
    time.sleep(0.002 * (n % 7))
print("last", n, flush=True)
time.sleep(600)
"""


def truth(count: int) -> bytes:
    lines = (f"{n} " + "x" * (n % 61) + "\r\n" for n in range(count))
    return "".join(lines).encode() + f"last {count}\r\n".encode()


def whole_stream(live: Live, patience: float = 30.0) -> bytes:
    """Everything the session printed, from its first byte, once the counter is done."""
    with live.client() as client:
        client.attach(
            mode="view", resume={"session_id": client.ask("info")["session_id"], "seq": 0}
        )
        assert client.welcome["resumed"]
        client.until(b"last ", patience)
        client.until(b"\n", patience)
        while not client.stream.endswith(b"\r\n"):
            client.next()
        return bytes(client.stream)


def expected(stream: bytes) -> bytes:
    return truth(int(stream.split()[-1]))


def program(live: Live) -> tuple[int, int]:
    """The counter's pid and its parent's."""
    with live.client() as client:
        graph = client.ask("graph")
    (found,) = [p for p in graph["processes"] if p["pid"] == graph["command_pid"]]
    return found["pid"], found["ppid"]


class Recorder:
    """A client process that is killed and comes back."""

    def __init__(self, live: Live, path: Path) -> None:
        self._live, self.path = live, path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = ROOT / "tests/support/recorder.py"
        command = [sys.executable, str(script), str(self._live.socket), str(self.path)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None


def test_clients_come_and_die_and_each_has_every_byte(tmp_path: Path) -> None:
    """30 s of attaching, kill -9 and reattaching: streams joined by seq equal the truth."""
    dice = random.Random(7)
    with Live(sys.executable, "-c", COUNTER, "30") as live:
        before = program(live)
        recorders = [Recorder(live, tmp_path / f"r{i}") for i in range(4)]
        kills, end = 0, time.monotonic() + 29
        try:
            while time.monotonic() < end:
                chosen = dice.choice(recorders)
                if chosen.process is None:
                    chosen.start()
                else:
                    chosen.kill()
                    kills += 1
                time.sleep(dice.uniform(0.05, 0.6))
            for one in recorders:
                one.kill()
                one.start()
            stream = whole_stream(live)
            until(lambda: all(_has_all(r) for r in recorders), "all recorders", 60)
        finally:
            for one in recorders:
                one.kill()
        assert program(live) == before
    assert stream == expected(stream)
    assert kills >= 20
    for one in recorders:
        _check_joined(recorder.read(one.path), stream)


def _has_all(one: Recorder) -> bool:
    assert one.process is not None
    blob = one.path.read_bytes() if one.path.exists() else b""  # not begun on a busy machine
    if blob.endswith(b"\r\n") and b"last " in blob[-64:]:
        return True  # and then it waits in vain for more, for as long as it is patient
    if one.process.poll() is not None:  # it lost patience on a busy machine: it comes back
        one.start()
    return False


def _check_joined(records: list[tuple[int, bytes]], stream: bytes) -> None:
    place = records[0][0]
    for seq, data in records:
        assert seq == place, "a gap or a double"
        assert stream[seq : seq + len(data)] == data
        place = seq + len(data)
    assert place == len(stream)


def test_a_killed_sidecar_loses_nothing() -> None:
    """kill -9 in mid-output, eight times: the program goes on, and every byte is there once."""
    dice = random.Random(11)
    with Live(sys.executable, "-c", COUNTER, "6") as live:
        before = program(live)
        for _ in range(8):
            time.sleep(dice.uniform(0.1, 0.5))
            live.kill_sidecar()
            time.sleep(dice.uniform(0.0, 0.2))
            live.start_sidecar()
        stream = whole_stream(live)
        assert program(live) == before
    assert stream == expected(stream)


def test_a_killed_sidecar_comes_back_with_the_exact_screen() -> None:
    with Live("bash", "--norc") as live:
        with live.attached() as client:
            client.typed(b"printf '\\e[1;31mred\\e[0m\\n\\e]2;a title\\a'; seq 300\r")
            client.until(b"\r\n300\r\n")
            while not client.stream.endswith(b"$ "):
                client.next()
        with live.client() as client:
            screen = client.ask("screen", format="ansi", scrollback=True)
        live.kill_sidecar()
        live.start_sidecar()
        with live.client() as client:
            assert client.ask("screen", format="ansi", scrollback=True) == screen
            assert screen["title"] == "a title"
            assert "\x1b[1m" in screen["text"]


def test_beyond_the_ring_there_is_a_gap_and_it_is_said() -> None:
    """More than the ring holds: who asks for the first byte hears exactly what is missing."""
    script = "for i in range(600000): print(i, 'y' * 80)\nprint('last', flush=True)\ninput()"
    with Live(sys.executable, "-c", script) as live, live.attached(mode="view") as watcher:
        while b"last" not in watcher.stream[-4096:] + watcher.snapshot[-4096:]:
            watcher.next()
            del watcher.stream[:-4096]
        info = watcher.ask("info")
        assert info["oldest"] > 0
        with live.client() as late:
            late.attach(resume={"session_id": info["session_id"], "seq": 0})
            assert not late.welcome["resumed"]
            assert [(gap.start, gap.end) for gap in late.gaps] == [(0, info["seq"])]
            assert b"last" in late.snapshot


def test_a_client_that_never_reads_holds_up_nobody() -> None:
    script = (
        "input()\nfor i in range(500000): print(i, 'z' * 80)\nprint('last', flush=True)\ninput()"
    )
    with Live(sys.executable, "-c", script) as live:
        stalled = live.client()
        stalled.attach(mode="view")
        with live.attached() as reader:
            reader.typed(b"\r")
            while b"last" not in reader.stream[-4096:] + reader.snapshot[-4096:]:
                reader.next()
                del reader.stream[:-4096]
            # Base, scrollback, ring (32 MiB, mapped) and one unsent snapshot; not the 40 MB printed
            # twice over.
            assert live.rss_mib() < 130
            truth_screen = reader.ask("screen")["text"]
        while b"last" not in stalled.stream[-4096:] + stalled.snapshot[-4096:]:
            stalled.next()
        assert stalled.gaps, "it was told what it missed"
        assert "last" in truth_screen
        stalled.close()


def test_half_a_frame_and_a_dead_client_harm_nobody(live_bash: Live) -> None:
    with live_bash.client() as half:
        half.sock.sendall(b"\x01\x05\x00")
    with live_bash.attached() as client:
        client.typed(b"echo still-$((40+2))\r")
        client.until(b"still-42")


def test_inputs_count_once_through_killed_sidecars(tmp_path: Path) -> None:
    """kill -9 while inputs are on their way; what was not acknowledged is sent again."""
    dice, got = random.Random(3), tmp_path / "got"
    with Live("sh", "-c", f"stty raw -echo; echo ready; cat > {got}") as live:
        client = live.attached()
        until(lambda: "ready" in client.ask("screen")["text"], "the terminal to be raw")
        sent: dict[int, bytes] = {}
        for _ in range(6):
            waiting = dict.fromkeys(range(len(sent) + 1, len(sent) + dice.randint(9, 60)), b"")
            for number in waiting:
                sent[number] = waiting[number] = b"%d," % number
                client.typed(waiting[number], number, b"key %d" % number)
            time.sleep(dice.uniform(0, 0.003))
            live.kill_sidecar()
            with contextlib.suppress(OSError):
                while True:
                    client.next()
            client.close()
            for ack in client.acks:
                waiting.pop(ack.number, None)
            live.start_sidecar()
            client = live.attached()
            for number, data in waiting.items():
                client.typed(data, number, b"key %d" % number)
            while len(client.acks) < len(waiting):
                client.next()
        truth = b"".join(sent.values())
        until(lambda: len(got.read_bytes()) >= len(truth), "all of it")
        client.close()
    assert got.read_bytes() == truth
