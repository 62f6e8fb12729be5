"""The command line as it is read, and every way to get it wrong."""

from __future__ import annotations

import sys

import pytest

from holdfast.arguments import (
    Given,
    Target,
    means_cluster,
    overview,
    parse,
    parser_for,
    split,
)
from holdfast.cli import main, program_name
from holdfast.commands import HANDLERS
from holdfast.specs import COMMANDS
from holdfast.values import size
from holdfast_wire.errors import BadRequest


def given(command: str, *tokens: str) -> Given:
    return parse(parser_for("holdfast", command), command, tokens)


def test_every_command_has_a_handler() -> None:
    assert set(HANDLERS) | {"help"} == set(COMMANDS)
    text = overview("kubectl holdfast")
    for command, spec in COMMANDS.items():
        assert f"  {command:<12}{spec.summary}" in text


def test_options_may_stand_anywhere() -> None:
    for tokens in (
        ("build", "make", "test", "--enter"),
        ("--enter", "build", "make", "test"),
        ("build", "--enter", "make", "test"),
    ):
        read = given("send", *tokens)
        assert read.words == ["build", "make", "test"]
        assert read.options.enter
        assert read.after is None


def test_a_run_commands_own_options_are_its_own() -> None:
    for tokens in (("-d", "ls", "-l", "--all"), ("-d", "--", "ls", "-l", "--all")):
        read = given("run", *tokens)
        assert read.after == ["ls", "-l", "--all"]
        assert read.options.detach
    assert given("run", "--name=x", "-d").after is None
    assert given("run", "-n", "-odd", "--").options.name == "-odd"


@pytest.mark.parametrize(
    ("command", "tokens", "meant"),
    [
        ("ls", ("--cluster",), True),
        ("ls", ("-n", "team"), True),
        ("ls", ("-nteam",), True),
        ("ls", ("--namespace=team",), True),
        ("attach", ("build", "--context", "prod"), True),
        ("attach", ("build", "--kubeconfig=/k"), True),
        ("attach", ("build", "--view"), False),
        ("attach", ("--detach-keys", "--cluster"), False),
        ("send", ("build", "--", "--cluster"), False),
        ("exec", ("build", "--", "kubectl", "-n", "x"), False),
        ("run", ("-n", "name"), False),
        ("run", ("-n", "name", "--cluster"), True),
        ("run", ("--image", "x", "--namespace", "y", "z"), True),
        ("run", ("kubectl", "--context", "x"), False),
        ("version", ("--cluster",), False),
    ],
)
def test_which_options_mean_a_cluster(command: str, tokens: tuple[str, ...], meant: bool) -> None:
    assert means_cluster(command, tokens) is meant


def test_a_clusters_options() -> None:
    tokens = ("web", "-n", "team", "--context=prod", "--image", "x", "--", "make", "-n")
    read = parse(parser_for("kubectl holdfast", "run", True), "run", tokens, True)
    assert read.target == Target("kubectl holdfast", "team", "prod", None)
    assert (read.words, read.after, read.options.image) == (["web"], ["make", "-n"], "x")
    assert given("run", "-n", "web").options.name == "web"
    assert given("run", "-n", "web").target is None


def test_exec_takes_what_follows_the_dashes() -> None:
    read = given("exec", "build", "--timeout", "5", "--", "make", "--", "-k")
    assert read.words == ["build"]
    assert read.after == ["make", "--", "-k"]
    assert read.options.timeout == 5.0


def test_values_that_look_like_options() -> None:
    options, words, after = split(["--keys", "-x", "-", "-o", "json"], {"--keys", "-o"}, False)
    assert (options, words, after) == (["--keys=-x", "-ojson"], ["-"], None)


def test_sizes() -> None:
    assert size("120x40") == (120, 40)
    assert size("80X24") == (80, 24)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "80",
        "80x",
        "x24",
        "0x0",
        "-1x5",
        "1x1",
        "100000x10",
        "80x24x3",
        "٣x٣",
        "9" * 30 + "x1",
    ],
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(BadRequest):
        size(text)


def fails(capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str]:
    code = main(tokens)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("holdfast: ")
    assert "Traceback" not in err
    return code, err


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("atach",), "did you mean: holdfast attach?"),
        (("list",), "did you mean: holdfast ls?"),
        (("kill",), "did you mean: holdfast end?"),
        (("xyzzy",), "see: holdfast --help"),
        (("--frob",), "must stand after a command"),
        (("\x1b]0;x\x07",), "there is no command ''"),
        (("run", "--frob"), "unrecognized arguments: --frob"),
        (("run", "--size"), "expected one argument"),
        (("run", "--size", "0x0"), "a terminal cannot be 0x0"),
        (("run", "--size", "100000x10"), "a terminal cannot be 100000x10"),
        (("run", "--scrollback", "-5"), "is not a number"),
        (("run", "--detach-keys", "d"), "would swallow an ordinary key"),
        (("ls", "-o", "xml"), "invalid choice"),
        (("ls", "build"), "what is 'build' for?"),
        (("exec", "build", "make"), "exec needs a command after '--'"),
        (("exec", "build", "--timeout", "nan", "--", "x"), "is not a number of seconds"),
        (("exec", "build", "--key", "", "--", "x"), "1 to 255 bytes"),
        (("wait", "build", "--for", "lunch"), "a session is never 'lunch'"),
        (("send", "build"), "there is nothing to send"),
        (("send", "build", "--keys", "Hyper"), "'Hyper' is not a key"),
        (("attach", ".."), "'..' is not a session name"),
        (("screen", "x" * 300), "is not a session name"),
        (("screen", "Ünïcode"), "is not a session name"),
        (("screen", "-"), "is not a session name"),
        (("completion", "tcsh"), "one of bash, zsh, fish"),
        (("completion",), "which shell?"),
        (("help", "atach"), "did you mean: holdfast attach?"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    tokens: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    monkeypatch.setenv("HOLDFAST_DIR", str(tmp_path_factory.mktemp("s") / "state"))
    code, err = fails(capsys, *tokens)
    assert said in err
    assert code == 64
    assert "\x1b" not in err


def test_no_sessions(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    monkeypatch.setenv("HOLDFAST_DIR", str(tmp_path_factory.mktemp("s") / "state"))
    for tokens in (("screen",), ("attach",), ("end",), ("screen", "nope")):
        code, err = fails(capsys, *tokens)
        assert code == 66
        assert "holdfast run" in err
    assert main(["ls"]) == 0
    assert main(["ls", "-o", "json"]) == 0
    assert '"sessions": []' in capsys.readouterr().out


@pytest.mark.parametrize("tokens", [(), ("-h",), ("--help",), ("help",)])
def test_overview(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-holdfast"])
    assert main(tokens) == 0
    assert "usage: kubectl holdfast COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", [("run", "-h"), ("help", "run"), ("attach", "x", "--help")])
def test_command_help(capsys: pytest.CaptureFixture[str], tokens: tuple[str, ...]) -> None:
    assert main(tokens) == 0
    assert "examples:" in capsys.readouterr().out


def test_program_name() -> None:
    assert program_name("/usr/local/bin/kubectl-holdfast") == "kubectl holdfast"
    assert program_name("holdfast") == "holdfast"
    assert program_name("/x/holdfast/__main__.py") == "holdfast"


def test_interrupt_and_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(given: Given) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(HANDLERS, "version", interrupted)
    assert main(["version"]) == 130


def test_the_unexpected_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(given: Given) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    monkeypatch.setitem(HANDLERS, "version", broken)
    code, err = fails(capsys, "version")
    assert code == 70
    assert "ZeroDivisionError: oops" in err
    assert "HOLDFAST_DEBUG=1" in err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["version"])
