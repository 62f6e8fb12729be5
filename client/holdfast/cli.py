"""`holdfast`, also as `kubectl holdfast`: reads the command line, runs a command, reports errors.

Every failure ends as one sentence on standard error, advice below it, and the exit code of its
class. A traceback is a fault of ours and is shown only with HOLDFAST_DEBUG=1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from holdfast_wire.errors import BadRequest, HoldfastError, Internal

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
KUBECTL_PLUGIN: Final = "kubectl holdfast"


def main(argv: Sequence[str] | None = None) -> int:
    tokens = list(sys.argv[1:] if argv is None else argv)
    prog = program_name(sys.argv[0])
    try:
        code = dispatch(prog, tokens)
        sys.stdout.flush()
    except HoldfastError as error:
        return _report(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has what it wanted. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except SystemExit as error:  # argparse's --help
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:  # the edge of the process
        if os.environ.get("HOLDFAST_DEBUG"):
            raise
        return _report(
            Internal(
                f"something unexpected happened: {type(error).__name__}: {error}",
                "this is a fault of holdfast; HOLDFAST_DEBUG=1 shows where",
            )
        )
    return code


def program_name(path: str) -> str:
    """kubectl runs `kubectl-holdfast` for `kubectl holdfast`; help shows what the user types."""
    name = os.path.basename(path)  # noqa: PTH119 - pathlib is not needed to print help
    return KUBECTL_PLUGIN if name.startswith("kubectl-") else "holdfast"


def dispatch(prog: str, tokens: list[str]) -> int:
    from holdfast.arguments import means_cluster, overview, parse, parser_for
    from holdfast.specs import COMMANDS

    tokens = _command_first(tokens)
    if not tokens or tokens[0] in ("-h", "--help"):
        sys.stdout.write(overview(prog))
        return 0
    command, rest = tokens[0], tokens[1:]
    if command in ("-V", "--version"):
        command = "version"
    if command not in COMMANDS:
        raise _unknown(prog, command)
    if command == "help":
        return _help(prog, rest)
    cluster = prog == KUBECTL_PLUGIN or means_cluster(command, rest)
    if cluster and prog != KUBECTL_PLUGIN:
        prog += " --cluster"
    parser = parser_for(prog, command, cluster)
    given = parse(parser, command, rest, cluster)
    from holdfast.commands import HANDLERS

    return HANDLERS[command](given)


def _command_first(tokens: list[str]) -> list[str]:
    """`kubectl holdfast -n team ls` is what people type who are used to kubectl."""
    from holdfast.arguments import CLUSTER_OPTIONS

    hoisted: list[str] = []
    position = 0
    while position < len(tokens) and tokens[position].partition("=")[0] in CLUSTER_OPTIONS:
        given = tokens[position]
        position += 1
        # Before the command it can only mean the namespace; after `run` it is also a name's.
        hoisted.append("--namespace" if given == "-n" else given)
        if given != "--cluster" and "=" not in given and position < len(tokens):
            hoisted.append(tokens[position])
            position += 1
    rest = tokens[position:]
    return [rest[0], *hoisted, *rest[1:]] if hoisted and rest else tokens


def _help(prog: str, words: list[str]) -> int:
    from holdfast.arguments import overview, parser_for
    from holdfast.specs import COMMANDS

    if not words or words[0].startswith("-"):
        sys.stdout.write(overview(prog))
        return 0
    if words[0] not in COMMANDS:
        raise _unknown(prog, words[0])
    cluster = prog == KUBECTL_PLUGIN
    sys.stdout.write(parser_for(prog, words[0], cluster).format_help())
    return 0


def _unknown(prog: str, command: str) -> BadRequest:
    import difflib

    from holdfast.specs import COMMANDS
    from holdfast_wire.plain import plain

    shown = plain(command)[:40]
    if command.startswith("-"):
        return BadRequest(f"{shown!r} must stand after a command", f"see: {prog} --help")
    aliases = {"list": "ls", "kill": "end", "stop": "end", "start": "run", "new": "run"}
    near = difflib.get_close_matches(command, [*COMMANDS, *aliases], n=1, cutoff=0.5)
    if near:
        return BadRequest(
            f"there is no command {shown!r}",
            f"did you mean: {prog} {aliases.get(near[0], near[0])}?",
        )
    return BadRequest(f"there is no command {shown!r}", f"see: {prog} --help")


def _report(error: HoldfastError) -> int:
    from holdfast.render import Style
    from holdfast_wire.plain import plain

    lines = [plain(line) for line in error.message.split("\n")]
    try:
        style = Style.of(sys.stderr)
        sys.stderr.write(style.paint("holdfast: ", "red") + "\n".join(lines) + "\n")
        if error.advice:
            sys.stderr.write(style.paint("advice: ", "dim") + plain(error.advice) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody can hear it; the code still says it
    return error.exit_code
