"""Jobs on the command line, in a real session."""

from __future__ import annotations

import json

from client_kit import Home


def test_jobs(home: Home) -> None:
    home.start("build")
    home.ok("send", "build", "half typed")
    done = home.run("job", "build", "--", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\nerr\n"), done.stderr
    started = ("job", "build", "-d", "--key", "nightly", "--env", "A=7", "--", "echo $A")
    first, second = home.run(*started), home.run(*started)
    assert first.stdout == second.stdout
    assert "not run again" in second.stderr
    identity = first.stdout.strip()
    assert home.ok("job", "build", identity, "--follow") == "7\n"
    sleeper = home.ok("job", "build", "-d", "--", "sleep", "60").strip()
    assert "it goes on" in home.run("job", "build", sleeper).stderr
    home.ok("job", "build", sleeper, "--signal", "TERM")
    assert home.run("job", "build", sleeper, "-f").returncode == 143
    listed = {one["id"]: one["exit"] for one in home.json("jobs", "build")["jobs"]}
    assert listed[sleeper] == {"code": None, "signal": 15}
    assert home.ok("jobs", "build").splitlines()[-1].split()[:3] == [sleeper, "ended", "143"]
    assert json.loads(home.ok("job", "build", identity, "-o", "json"))["key"] == "nightly"
    assert "half typed" in home.ok("screen", "build")
    done = home.run("job", "build")
    assert (done.returncode, "which job" in done.stderr) == (64, True)
    home.run("end", "build", "--grace", "0")
