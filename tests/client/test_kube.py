"""What kubectl says when it fails, and what we make of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.arguments import Target
from holdfast.kube import Kubectl, complaint, explain, explain_exec
from holdfast_wire.errors import (
    AlreadyExists,
    BadRequest,
    CommandFailed,
    Forbidden,
    HoldfastError,
    Internal,
    NotFound,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

FORBIDDEN = (
    'Error from server (Forbidden): pods "b-1" is forbidden: User "eve" cannot create resource'
    ' "pods/exec" in API group "" in the namespace "team"'
)


@pytest.mark.parametrize(
    ("stderr", "kind", "said"),
    [
        ('error: the server doesn\'t have a resource type "sessions"', Unsupported, "helm install"),
        (
            (
                'error: resource mapping not found: no matches for kind "Session" in version "x"\n'
                "ensure CRDs are installed first"
            ),
            Unsupported,
            "not installed in this cluster",
        ),
        ('Error from server (NotFound): sessions "x" not found', NotFound, 'sessions "x"'),
        (FORBIDDEN, Forbidden, 'User "eve" cannot create'),
        ("error: You must be logged in to the server (Unauthorized)", Unauthenticated, "log in"),
        ("Error from server (AlreadyExists): x already exists", AlreadyExists, "already exists"),
        ("Error from server (Invalid): spec.command: Required", BadRequest, "spec.command"),
        ("Error from server (ServiceUnavailable): try later", Unavailable, "try later"),
        ("Error from server: etcdserver: leader changed", Unavailable, "leader changed"),
        (
            (
                "E1116 07:00:00.0 memcache.go:265] couldn't get current server API group list\n"
                "The connection to the server localhost:8080 was refused - did you specify the"
                " right host or port?"
            ),
            Unavailable,
            "localhost:8080",
        ),
        ('error: context "nope" does not exist', BadRequest, "get-contexts"),
        ("error: stat /x: no such file or directory", BadRequest, "/x"),
        ("error: context was not found for specified context: x", BadRequest, "for specified"),
        (
            (
                'Error from server (NotFound): Unable to list "holdfast.dev/v1alpha1,'
                ' Resource=sessions": the server could not find the requested resource'
            ),
            Unsupported,
            "not installed",
        ),
        ('error: the server doesn\'t have a resource type "events"', Unavailable, '"events"'),
        ("", Unavailable, "ended with code 3"),
    ],
)
def test_explain(stderr: str, kind: type[HoldfastError], said: str) -> None:
    error = explain(stderr, 3)
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("stderr", "code", "kind", "said"),
    [
        ('Error from server (NotFound): pods "b-1" not found', 1, Unavailable, "pod b-1 is not"),
        (
            'error: unable to upgrade connection: container not found ("holdfast")',
            1,
            Unavailable,
            "pod b-1 is not there yet",
        ),
        (
            "Error from server (BadRequest): pod b-1 does not have a host assigned",
            1,
            Unavailable,
            "host assigned",
        ),
        (FORBIDDEN, 1, Forbidden, "eve"),
        (
            (
                'OCI runtime exec failed: "holdfast-relay": executable file not found in $PATH'
                "\ncommand terminated with exit code 126"
            ),
            126,
            Unsupported,
            "too old",
        ),
        (
            "the session is not being served (yet)\ncommand terminated with exit code 75",
            75,
            Unavailable,
            "pod b-1: the session is not being served",
        ),
        ("", 0, Unavailable, "was closed"),
        ("error: error sending request: no such host", 1, Unavailable, "cannot be reached"),
    ],
)
def test_explain_exec(stderr: str, code: int, kind: type[HoldfastError], said: str) -> None:
    error = explain_exec(stderr, code, "b-1")
    assert type(error) is kind
    assert said in str(error)


def test_the_telling_line() -> None:
    text = "Warning: old API\nI1116 log\nerror: this\x1b[2J one\nsee kubectl --help\n"
    assert complaint(text) == "error: this one"
    assert complaint("only this\n") == "only this"
    assert complaint("") == ""


def test_no_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KUBECTL", "/nowhere/kubectl")
    with pytest.raises(CommandFailed, match="is not there") as caught:
        Kubectl(Target("x")).text("get", "x")
    assert "HOLDFAST_KUBECTL" in caught.value.advice
    monkeypatch.setenv("HOLDFAST_KUBECTL", "/etc/passwd")
    with pytest.raises(CommandFailed, match="cannot be run"):
        Kubectl(Target("x")).text("get", "x")


def test_options_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!{sys.executable} -S\nimport sys\nprint(sys.argv[1:])\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_KUBECTL", str(program))
    kubectl = Kubectl(Target("x", "team", "prod", "/k"))
    assert kubectl.text("get", "x") == (
        "['--kubeconfig=/k', '--context=prod', '--namespace=team', 'get', 'x',"
        " '--request-timeout=15s']\n"
    )
    with pytest.raises(Internal, match="not JSON"):
        kubectl.json("get", "x")
    kubectl.stop()
    with pytest.raises(Unavailable, match="given up"):
        kubectl.text("get", "x")
