"""The commands there are: what may stand beside each, its options, and the help that teaches it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from holdfast.values import count, key, seconds, size, variable
from holdfast_wire.errors import BadRequest

DETACH_KEYS: Final = "ctrl-\\,d"
SCROLLBACK: Final = 10_000
GRACE_SECONDS: Final = 5.0
EXEC_SECONDS: Final = 60.0
SHELLS: Final = ("bash", "zsh", "fish")
WAIT_FOR: Final = ("prompt", "reading", "password", "running", "frozen", "ended", "input")
NAME_HINT: Final = "\n\nNAME may be left out while exactly one session lives."


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width. argparse would load shutil, and with it every compressor, to ask for it,
    and does so for each option that is added."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 80
        super().__init__(prog, width=min(max(columns - 2, 40), 100))


class CommandParser(argparse.ArgumentParser):
    """Raises instead of exiting, and knows which options take a value."""

    def __init__(self, **kwargs: Any) -> None:
        self.takes_value: set[str] = set()
        super().__init__(
            allow_abbrev=False,
            formatter_class=HelpFormatter,
            **kwargs,
        )

    def option(self, *names: str, **kwargs: Any) -> None:
        action = self.add_argument(*names, **kwargs)
        if action.nargs != 0:
            self.takes_value.update(action.option_strings)

    def error(self, message: str) -> NoReturn:
        raise BadRequest(message, f"see: {self.prog} --help")


class Spec(NamedTuple):
    """One command. `words` is what may stand beside the options, in the usage line."""

    group: str
    summary: str
    words: str
    options: Callable[[CommandParser], None]
    epilog: str
    names_session: bool = True
    command_first: bool = False
    """The first word begins the command to run; what follows it is not ours to read."""
    in_cluster: bool = True
    """Whether it may also be said of sessions in a cluster."""


def _none(parser: CommandParser) -> None:
    pass


def _output(parser: CommandParser, *more: str) -> None:
    parser.option(
        "-o", "--output", choices=("json", "yaml", *more), metavar="FORMAT",
        help=" or ".join(("json", "yaml", *more)) + ", for programs",
    )  # fmt: skip


def _detach_keys(parser: CommandParser) -> None:
    parser.option(
        "--detach-keys", metavar="KEYS",
        help=f"keys that leave the session running and give you your shell back (default:"
        f" {DETACH_KEYS}, or $HOLDFAST_DETACH_KEYS; 'none' for none)",
    )  # fmt: skip


def _run(parser: CommandParser) -> None:
    parser.option("-n", "--name", help="the session's name (default: from the command)")
    parser.option("-d", "--detach", action="store_true", help="start it and do not attach")
    parser.option(
        "--if-absent", action="store_true", help="if a session of that name lives, use that one"
    )
    parser.option("--size", type=size, metavar="CxR", help="columns x rows (default: your window)")
    parser.option(
        "--scrollback", type=count, default=SCROLLBACK, metavar="N",
        help="lines kept above the screen (default: %(default)s)",
    )  # fmt: skip
    parser.option("--cwd", metavar="D", help="folder to start in (default: this one)")
    _detach_keys(parser)
    _output(parser)


def _attach(parser: CommandParser) -> None:
    parser.option("--view", action="store_true", help="look on; nothing you type is sent")
    parser.option("--wake", action="store_true", help="also if somebody suspended it")
    _detach_keys(parser)


def _ls(parser: CommandParser) -> None:
    _output(parser, "name")


def _screen(parser: CommandParser) -> None:
    parser.option("--ansi", action="store_true", help="with its colours")
    parser.option("--scrollback", action="store_true", help="and what has scrolled off above")
    _output(parser)


def _send(parser: CommandParser) -> None:
    parser.option("--enter", action="store_true", help="press Enter after the text")
    parser.option("--keys", metavar="KEYS", help="then press these keys, such as 'C-c Up Enter'")
    parser.option("--key", type=key, metavar="K", help="idempotency key: sent twice, typed once")
    _output(parser)


def _exec(parser: CommandParser) -> None:
    parser.option(
        "--timeout", type=seconds, default=EXEC_SECONDS, metavar="S",
        help="give up waiting after S seconds; the command goes on (default: %(default)g)",
    )  # fmt: skip
    parser.option("--key", type=key, metavar="K", help="idempotency key: asked twice, run once")
    _output(parser)


def _wait(parser: CommandParser) -> None:
    parser.option(
        "--for", dest="wanted", metavar="STATE", default="prompt",
        help=f"one of {', '.join(WAIT_FOR)}, or several with commas between (default: prompt)",
    )  # fmt: skip
    parser.option("--timeout", type=seconds, metavar="S", help="give up after S seconds (exit 124)")
    _output(parser)


def _journal(parser: CommandParser) -> None:
    parser.option("--after", type=count, metavar="N", help="only what came after record number N")
    parser.option("--limit", type=count, metavar="N", help="at most N records")
    _output(parser)


def _job(parser: CommandParser) -> None:
    parser.option("-d", "--detach", action="store_true", help="print its id and do not follow it")
    parser.option("-f", "--follow", action="store_true", help="of one that was started: to its end")
    parser.option("--signal", metavar="S", help="of one that was started: send it a signal, as INT")
    parser.option("--key", type=key, metavar="K", help="idempotency key: asked twice, run once")
    parser.option("--cwd", metavar="D", help="folder to run in (default: the shell's)")
    parser.option(
        "--env", type=variable, action="append", default=[], metavar="N=V",
        help="a variable it gets; may be given again",
    )  # fmt: skip
    _output(parser)


def _end(parser: CommandParser) -> None:
    parser.option(
        "--grace", type=seconds, default=GRACE_SECONDS, metavar="S",
        help="seconds between asking politely and killing (default: %(default)g)",
    )  # fmt: skip
    parser.option("--all", action="store_true", help="end every session on this machine")


def _take(parser: CommandParser) -> None:
    parser.add_argument("--ask", action="store_true", help="ask whoever has it, and take nothing")


def _release(parser: CommandParser) -> None:
    parser.add_argument("--to", metavar="WHO", help="to whom, of those who ask or write here")


def _run_in_cluster(parser: CommandParser) -> None:
    parser.option("--image", metavar="IMAGE", help="the container image it runs in")
    parser.option("-d", "--detach", action="store_true", help="create it and do not attach")
    parser.option("--size", type=size, metavar="CxR", help="columns x rows (default: your window)")
    parser.option(
        "--scrollback", type=count, default=SCROLLBACK, metavar="N",
        help="lines kept above the screen (default: %(default)s)",
    )  # fmt: skip
    _detach_keys(parser)
    _output(parser)


def _ls_in_cluster(parser: CommandParser) -> None:
    parser.option("-A", "--all-namespaces", action="store_true", help="in every namespace")
    _ls(parser)


def _end_in_cluster(parser: CommandParser) -> None:
    parser.option("--no-wait", action="store_true", help="ask for its end and do not wait for it")
    parser.option("--all", action="store_true", help="end every session in the namespace")


def _move(parser: CommandParser) -> None:
    parser.option("--to", metavar="NODE", help="the node to go to (default: any that can take it)")
    _no_wait(parser)


def _no_wait(parser: CommandParser) -> None:
    parser.option("--no-wait", action="store_true", help="ask for it and do not wait for it")


def _fork(parser: CommandParser) -> None:
    parser.option("--checkpoint", metavar="NAME", help="as it was then (default: as it is now)")
    _no_wait(parser)


COMMANDS: Final[dict[str, Spec]] = {
    "run": Spec(
        "start and visit", "start a session, and attach to it", "[--] [COMMAND…]", _run,
        "examples:\n"
        "  {prog} run                                your shell\n"
        "  {prog} run --name build -- make -j8       a command, under a name\n"
        "  {prog} run -d --name web -- npm start     in the background; prints its URL",
        names_session=False, command_first=True,
    ),
    "attach": Spec(
        "start and visit", "attach your terminal to a session", "[NAME]", _attach,
        "To leave it running, press " + " then ".join(DETACH_KEYS.split(",")) + ".\n\nexamples:\n"
        "  {prog} attach build\n"
        "  {prog} attach build --view                look on only\n"
        "  {prog} attach build --wake                let it go on first, if it is suspended\n"
        "  {prog} attach build --detach-keys ctrl-],q",
    ),
    "ls": Spec(
        "start and visit", "list the sessions on this machine", "", _ls,
        "examples:\n  {prog} ls\n  {prog} ls -o name | xargs -n1 {prog} state",
        names_session=False,
    ),
    "url": Spec(
        "start and visit", "print the address of the browser page", "[NAME]", _output,
        "The address contains the token: whoever has it can type into your sessions.\n\n"
        "examples:\n  {prog} url build",
    ),
    "screen": Spec(
        "read and write", "print what is on the screen", "[NAME]", _screen,
        "examples:\n  {prog} screen build\n  {prog} screen build --scrollback | grep -i error",
    ),
    "send": Spec(
        "read and write", "type into a session", "[NAME] [TEXT…]", _send,
        "Words are joined with spaces. TEXT '-' is read from standard input.\n\n"
        "examples:\n"
        "  {prog} send build 'make test' --enter\n"
        "  {prog} send build --keys 'C-c Up Enter'\n"
        "  {prog} send build - < script.sql",
    ),
    "exec": Spec(
        "read and write", "run a command in the session's shell and wait for it",
        "[NAME] -- COMMAND…", _exec,
        "Prints its output and exits with its code. One word is given to the shell as it is;\n"
        "several are quoted so that they arrive as they are.\n\n"
        "examples:\n"
        "  {prog} exec build -- make test\n"
        "  {prog} exec build -o json -- 'grep -c import *.py | sort'",
    ),
    "state": Spec(
        "watch", "say what a session is doing", "[NAME]", _output,
        "examples:\n  {prog} state build\n  {prog} state build -o json",
    ),
    "describe": Spec(
        "watch", "say all that is known of a session, and why", "[NAME]", _output,
        "examples:\n  {prog} describe build",
    ),
    "wait": Spec(
        "watch", "wait until a session is in some state", "[NAME]", _wait,
        "'input' is any of prompt, reading and password: it waits for somebody.\n\n"
        "examples:\n"
        "  {prog} wait build --for prompt --timeout 600\n"
        "  {prog} wait build --for input,ended",
    ),
    "graph": Spec(
        "watch", "show the session's processes as a tree", "[NAME]", _output,
        "The terminal's foreground is marked with *.\n\nexamples:\n  {prog} graph build",
    ),
    "logs": Spec(
        "watch", "list who did what and when", "[NAME]", _journal,
        "What was typed is not recorded, only how much and by whom.\n\n"
        "examples:\n  {prog} logs build --limit 20",
    ),
    "journal": Spec(
        "watch", "the same as logs", "[NAME]", _journal,
        "examples:\n  {prog} journal build --limit 20",
    ),
    "job": Spec(
        "read and write", "run a command beside the terminal, and follow it",
        "[NAME] [ID] [-- COMMAND…]", _job,
        "It runs in the session, with what its shell has, but not in its terminal: a line that\n"
        "somebody is typing there stays as it is. Exits with the command's code.\n\n"
        "examples:\n"
        "  {prog} job build -- make test\n"
        "  {prog} job build -d --key nightly-42 -- ./deploy.sh\n"
        "  {prog} job build ID --follow",
    ),
    "jobs": Spec(
        "watch", "list the jobs of a session", "[NAME]", _output,
        "examples:\n  {prog} jobs build\n  {prog} jobs build -o json",
    ),
    "take": Spec(
        "control", "take the turn: the right to type", "[NAME]", _take,
        "examples:\n  {prog} take build\n  {prog} take build --ask",
    ),
    "release": Spec(
        "control", "give the turn to another", "[NAME]", _release,
        "To whoever asked for it first, or else to the next who is here to write.\n\n"
        "examples:\n  {prog} release build\n  {prog} release build --to ana",
    ),
    "freeze": Spec(
        "control", "stop every process of a session, for now", "[NAME]", _none,
        "examples:\n  {prog} freeze build",
    ),
    "thaw": Spec(
        "control", "let a frozen session go on", "[NAME]", _none,
        "examples:\n  {prog} thaw build",
    ),
    "move": Spec(
        "control", "move a session, alive, to another node of its cluster", "[NAME]", _move,
        "Its processes, memory and terminal go on there as they were; connections to the outside\n"
        "are cut, and the programs that had them see an error. 'kubectl drain' does the same.\n\n"
        "examples:\n  {prog} move build\n  {prog} move build --to node-2",
    ),
    "suspend": Spec(
        "control", "store a session, and free the memory it has", "[NAME]", _no_wait,
        "It goes on where it was when it is woken; connections to the outside are cut.\n"
        "On this machine that needs root and CRIU, and survives a reboot; in a cluster it\n"
        "frees the session's node.\n\nexamples:\n  {prog} suspend build",
    ),
    "wake": Spec(
        "control", "let a suspended session go on", "[NAME]", _no_wait,
        "So does 'attach'; in a cluster 'attach --wake', unless it was just idle.\n\n"
        "examples:\n  {prog} wake build",
    ),
    "fork": Spec(
        "control", "begin a session as a copy of another", "NAME NEW", _fork,
        "The copy has the other's processes, terminal and files, and is a session of its own.\n"
        "Both go on; connections to the outside are cut in the copy.\n\n"
        "examples:\n  {prog} fork build build-2\n"
        "  {prog} fork build build-2 --checkpoint build-1-k4",
    ),
    "end": Spec(
        "control", "end a session and everything in it", "[NAME]", _end,
        "examples:\n  {prog} end build\n  {prog} end --all --grace 0",
    ),
    "completion": Spec(
        "more", "print a completion script", "bash|zsh|fish", _none,
        "examples:\n"
        "  source <({prog} completion bash)\n"
        "  {prog} completion zsh > ~/.zfunc/_holdfast\n"
        "  {prog} completion fish > ~/.config/fish/completions/holdfast.fish",
        names_session=False, in_cluster=False,
    ),
    "help": Spec(
        "more", "explain a command", "[COMMAND]", _none, "examples:\n  {prog} help run",
        names_session=False, in_cluster=False,
    ),
    "version": Spec(
        "more", "print the version", "", _output, "", names_session=False, in_cluster=False
    ),
}  # fmt: skip

# Commands that are said otherwise of a cluster.
IN_CLUSTER: Final[dict[str, Spec]] = {
    "run": Spec(
        "start and visit", "create a session in the cluster, and attach to it",
        "NAME [-- COMMAND…]", _run_in_cluster,
        "The pod it gets fits the restricted profile. For volumes, resources or another user\n"
        "write a Session and apply it with kubectl.\n\n"
        "examples:\n"
        "  {prog} run build --image debian:stable-slim -- bash\n"
        "  {prog} run job -d --image python:3.13 -- python -m http.server",
        names_session=False,
    ),
    "ls": Spec(
        "start and visit", "list the sessions in the cluster", "", _ls_in_cluster,
        "examples:\n  {prog} ls\n  {prog} ls --all-namespaces",
        names_session=False,
    ),
    "url": Spec(
        "start and visit", "print the address of the browser page", "[NAME]", _output,
        "Where the gateway is not known by a name, also the command that reaches it.\n\n"
        "examples:\n  {prog} url build",
    ),
    "end": Spec(
        "control", "end a session and everything in it, for good", "[NAME]", _end_in_cluster,
        "examples:\n  {prog} end build\n  {prog} end --all --no-wait",
    ),
}  # fmt: skip
