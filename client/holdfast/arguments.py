"""What may be written on the command line, and the help that teaches it.

argparse reads the options and prints the help. Words (names, text, commands) are split off before,
because argparse cannot take options on both sides of a list of words.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from holdfast.values import count, key, seconds, size
from holdfast_wire.errors import BadRequest

DETACH_KEYS: Final = "ctrl-\\,d"
SCROLLBACK: Final = 10_000
GRACE_SECONDS: Final = 5.0
EXEC_SECONDS: Final = 60.0
SHELLS: Final = ("bash", "zsh", "fish")
WAIT_FOR: Final = ("prompt", "reading", "password", "running", "frozen", "ended", "input")
# Any of these, and the session meant is one in a cluster.
CLUSTER_OPTIONS: Final = ("--cluster", "-n", "--namespace", "--context", "--kubeconfig")


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


class Target(NamedTuple):
    """Which cluster and namespace, as kubectl is to be told; and what the user typed to get here,
    so that advice can be typed as well."""

    prog: str
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None


class Given(NamedTuple):
    options: argparse.Namespace
    words: list[str]
    after: list[str] | None
    """What followed `--`; None if there was none."""
    target: Target | None = None
    """The cluster meant; None for sessions on this machine."""


def _none(parser: CommandParser) -> None:
    pass


def _output(parser: CommandParser, *more: str) -> None:
    parser.option(
        "-o", "--output", choices=("json", *more), metavar="FORMAT",
        help=" or ".join(("json", *more)) + ", for programs",
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
    parser.option("--after", type=count, metavar="N", help="only what came after input number N")
    parser.option("--limit", type=count, metavar="N", help="at most N records")
    _output(parser)


def _end(parser: CommandParser) -> None:
    parser.option(
        "--grace", type=seconds, default=GRACE_SECONDS, metavar="S",
        help="seconds between asking politely and killing (default: %(default)g)",
    )  # fmt: skip
    parser.option("--all", action="store_true", help="end every session on this machine")


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


def _cluster(parser: CommandParser, short: bool) -> None:
    group = parser.add_argument_group("sessions in a cluster")
    names = ("-n", "--namespace") if short else ("--namespace",)
    for *flags, metavar, text in (
        (*names, "NS", "the namespace (default: that of your kubeconfig)"),
        ("--context", "NAME", "the kubeconfig's context"),
        ("--kubeconfig", "FILE", "the kubeconfig"),
    ):
        group.add_argument(*flags, metavar=metavar, help=text)
        parser.takes_value.update(flags)
    group.add_argument("--cluster", action="store_true", help="the cluster kubectl would talk to")


_NAME_HINT: Final = "\n\nNAME may be left out while exactly one session lives."

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
        in_cluster=False,
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
        "  {prog} exec build -o json -- 'grep -c TODO *.py | sort'",
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
    "journal": Spec(
        "watch", "list who did what and when", "[NAME]", _journal,
        "What was typed is not recorded, only how much and by whom.\n\n"
        "examples:\n  {prog} journal build --limit 20",
    ),
    "take": Spec(
        "control", "take the turn: the right to type", "[NAME]", _none,
        "examples:\n  {prog} take build",
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
        "It goes on where it was when it is woken or attached to; connections to the outside are\n"
        "cut. On this machine that needs root and CRIU, and survives a reboot; in a cluster it\n"
        "frees the session's node.\n\nexamples:\n  {prog} suspend build",
    ),
    "wake": Spec(
        "control", "let a suspended session go on", "[NAME]", _no_wait,
        "'attach' does the same.\n\nexamples:\n  {prog} wake build",
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
    "end": Spec(
        "control", "end a session and everything in it, for good", "[NAME]", _end_in_cluster,
        "examples:\n  {prog} end build\n  {prog} end --all --no-wait",
    ),
}  # fmt: skip


def spec_of(command: str, cluster: bool) -> Spec:
    return IN_CLUSTER.get(command, COMMANDS[command]) if cluster else COMMANDS[command]


def parser_for(prog: str, command: str, cluster: bool = False) -> CommandParser:
    spec = spec_of(command, cluster)
    description = spec.summary[0].upper() + spec.summary[1:] + "."
    epilog = spec.epilog.replace("{prog}", prog)
    parser = CommandParser(
        prog=f"{prog} {command}",
        usage=" ".join(word for word in (prog, command, "[options]", spec.words) if word),
        description=description,
        epilog=epilog + (_NAME_HINT if spec.names_session else ""),
    )
    spec.options(parser)
    if spec.in_cluster:
        # On this machine `run -n` is the session's name, and was so before there were clusters.
        _cluster(parser, short=cluster or command != "run")
    return parser


def parse(
    parser: CommandParser, command: str, tokens: Sequence[str], cluster: bool = False
) -> Given:
    first = spec_of(command, cluster).command_first
    options, words, after = split(tokens, parser.takes_value, stop_at_word=first)
    read = parser.parse_args(options)
    if not cluster:
        return Given(read, words, after)
    chosen = (getattr(read, name, None) for name in ("namespace", "context", "kubeconfig"))
    return Given(read, words, after, Target(parser.prog.rpartition(" ")[0], *chosen))


def means_cluster(command: str, tokens: Sequence[str]) -> bool:
    """Whether an option says so; `kubectl holdfast` means it without."""
    wanted = [name for name in CLUSTER_OPTIONS if command != "run" or name != "-n"]

    def says_so(token: str) -> bool:
        return any(
            token.partition("=")[0] == name or (name == "-n" and token.startswith("-n"))
            for name in wanted
        )

    if not COMMANDS[command].in_cluster or not any(map(says_so, tokens)):
        return False
    # It is one of ours only where options may stand, and not as another option's value.
    known = parser_for("", command).takes_value | parser_for("", command, True).takes_value
    return any(map(says_so, split(tokens, known, COMMANDS[command].command_first)[0]))


def split(
    tokens: Sequence[str], takes_value: set[str], stop_at_word: bool
) -> tuple[list[str], list[str], list[str] | None]:
    """Options with their values, words, and what follows `--`."""
    options: list[str] = []
    words: list[str] = []
    position = 0
    while position < len(tokens):
        given = tokens[position]
        position += 1
        if given == "--":
            return options, words, list(tokens[position:])
        if not given.startswith("-") or given == "-":
            if stop_at_word:
                return options, [], list(tokens[position - 1 :])
            words.append(given)
        elif given in takes_value and position < len(tokens):
            # Joined, so that a value that looks like an option is still a value.
            value = tokens[position]
            options.append(f"{given}={value}" if given.startswith("--") else given + value)
            position += 1
        else:
            options.append(given)
    return options, words, None


def overview(prog: str) -> str:
    """`holdfast --help`."""
    lines = [
        f"usage: {prog} COMMAND [options]",
        "",
        "Terminal sessions that nobody owns: start one, attach, leave, come back from anywhere.",
    ]
    groups: dict[str, list[str]] = {}
    for name, spec in COMMANDS.items():
        groups.setdefault(spec.group, []).append(f"  {name:<12}{spec.summary}")
    for group, entries in groups.items():
        lines += ["", f"{group}:", *entries]
    lines += [
        "",
        "try it:",
        f"  {prog} run                      a shell in a session; close the window, it stays",
        f"  {prog} attach                   come back",
        f"  {prog} COMMAND --help           examples for each command",
        "",
        f"To leave a session running, press {' then '.join(DETACH_KEYS.split(','))}.",
    ]
    return "\n".join(lines) + "\n"
