"""Reasons out of CRIU's own logs, which were made by dumping such programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_node.failure import DumpFailed, Reason, RestoreFailed, explain
from holdfast_wire.errors import Disposition

LOGS = Path(__file__).parent / "logs"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("big", "has a deleted file of 100 MiB open (/home/user/x)"),
        ("memfd_secret", "has secret memory"),
        ("netlink", "has an unread answer from the kernel"),
        ("outerunix", "is connected by a Unix socket to a process outside"),
        ("tty", "has a device such as /dev/tty open"),
        ("uffd", "has something open that cannot be moved: userfaultfd"),
        ("userns", "is in a user namespace of its own"),
        ("vsock", "has a socket of family VSOCK open"),
    ],
)
def test_a_real_log_tells_who_and_what(log: str, says: str) -> None:
    reason = explain((LOGS / f"{log}.log").read_text(), "nothing")
    assert reason.message.startswith(f"process 302 (python3) {says}")
    assert (reason.pid, reason.process) == (302, "python3")
    assert reason.advice


def test_an_unknown_error_is_told_as_it_is() -> None:
    log = (
        "(00.000725) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: x\n"
        "(00.002820) Dumping task (pid: 309 comm: my prog)\n"
        "(00.007505) Error (criu/strange.c:1): odd: The moon is full\n"
        "(00.011822) Error (criu/cr-dump.c:1545): Dump files (pid: 309) failed with -1\n"
        "(00.012218) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"
    )
    assert explain(log, "?") == Reason("CRIU says: odd: The moon is full", "", 309, "my prog")


def test_no_log_leaves_what_criu_answered() -> None:
    assert explain("", "it died") == Reason("CRIU says: it died")


def test_a_restore_names_the_process_in_whose_name_it_failed() -> None:
    log = "(00.033289)    302: Error (criu/sk-inet.c:1): inet: Can't bind inet socket (id 20)\n"
    reason = explain(log, "?")
    assert reason.pid == 302
    assert "address that the new pod does not have" in reason.message


@pytest.mark.parametrize(
    ("path", "says", "advice"),
    [
        ("run/holdfast-bin/hold", "is hold of an older release", "sidecar.formerImage"),
        ("usr/bin/bash", "uses /usr/bin/bash, which is another file", "by digest"),
    ],
)
def test_a_program_that_is_another_here(path: str, says: str, advice: str) -> None:
    log = f"(00.1)    301: Error (criu/files-reg.c:2): File {path} has bad size 7 (expect 9)\n"
    reason = explain(log, "?")
    assert says in reason.message
    assert advice in reason.advice


@pytest.mark.parametrize("kind", [DumpFailed, RestoreFailed])
def test_it_is_an_error_for_people(kind: type[DumpFailed] | type[RestoreFailed]) -> None:
    error = kind(Reason("a process is odd", "make it even", 7, "odd"))
    assert str(error) == "a process is odd (make it even)"
    assert error.disposition is Disposition.PERMANENT
    assert error.to_json()["code"] == kind.code
