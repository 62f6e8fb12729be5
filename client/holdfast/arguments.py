"""What may be written on the command line: read here, by the table of specs.py.

argparse reads the options and prints the help. Words (names, text, commands) are split off before,
because argparse cannot take options on both sides of a list of words.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.specs import COMMANDS, DETACH_KEYS, IN_CLUSTER, NAME_HINT, CommandParser, Spec

# Any of these, and the session meant is not one of this machine.
CLUSTER_OPTIONS: Final = (
    "--cluster", "-n", "--namespace", "--context", "--kubeconfig", "--gateway", "--token-file",
)  # fmt: skip
GATEWAY: Final = "HOLDFAST_GATEWAY"


class Target(NamedTuple):
    """Which cluster and namespace, as kubectl is to be told; and what the user typed to get here,
    so that advice can be typed as well."""

    prog: str
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    gateway: str | None = None
    """The address of a gateway itself, where no kubeconfig is asked."""
    token_file: str | None = None


class Given(NamedTuple):
    options: argparse.Namespace
    words: list[str]
    after: list[str] | None
    """What followed `--`; None if there was none."""
    target: Target | None = None
    """The cluster meant; None for sessions on this machine."""


def _cluster(parser: CommandParser, short: bool) -> None:
    group = parser.add_argument_group("sessions in a cluster")
    names = ("-n", "--namespace") if short else ("--namespace",)
    for *flags, metavar, text in (
        (*names, "NS", "the namespace (default: that of your kubeconfig)"),
        ("--context", "NAME", "the kubeconfig's context"),
        ("--kubeconfig", "FILE", "the kubeconfig"),
        ("--gateway", "URL", "a gateway itself, with a token and no kubeconfig"),
        ("--token-file", "FILE", "the token for it (default: $HOLDFAST_TOKEN)"),
    ):
        group.add_argument(*flags, metavar=metavar, help=text)
        parser.takes_value.update(flags)
    group.add_argument("--cluster", action="store_true", help="the cluster kubectl would talk to")


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
        epilog=epilog + (NAME_HINT if spec.names_session else ""),
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
    return Given(read, words, after, target_of(parser, read) if cluster else None)


def target_of(parser: CommandParser, read: argparse.Namespace) -> Target:
    names = ("namespace", "context", "kubeconfig", "gateway", "token_file")
    chosen = {name: getattr(read, name, None) for name in names}
    if not (chosen["context"] or chosen["kubeconfig"] or getattr(read, "cluster", False)):
        chosen["gateway"] = chosen["gateway"] or os.environ.get(GATEWAY) or None
    return Target(parser.prog.rpartition(" ")[0], **chosen)


def means_cluster(command: str, tokens: Sequence[str]) -> bool:
    """Whether an option says so, or the environment; `kubectl holdfast` means it without."""
    if COMMANDS[command].in_cluster and os.environ.get(GATEWAY):
        return True
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
