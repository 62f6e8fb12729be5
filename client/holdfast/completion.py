"""Completion scripts, made from the same table as the parser, so that they cannot fall behind it.

Session names come from `holdfast ls -o name`, which asks no sidecar and so is quick enough for a
key press; in a cluster it takes one call of the API.
"""

from __future__ import annotations

from argparse import Action
from typing import Final

from holdfast.arguments import Target, parser_for
from holdfast.specs import COMMANDS, SHELLS, WAIT_FOR, CommandParser

# Commands whose first word is one of a few.
_WORDS: Final = {"completion": SHELLS, "help": tuple(COMMANDS)}


def script(shell: str) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def flags(command: str) -> list[Action]:
    """The options of a command, on this machine and in a cluster, as argparse has them."""
    found: list[Action] = []
    for cluster in (False, True):
        parser: CommandParser = parser_for("holdfast", command, cluster)
        known = {option for action in found for option in action.option_strings}
        found += [
            action for action in parser._actions if not known.issuperset(action.option_strings)
        ]
    return found


def _values(action: Action) -> tuple[str, ...]:
    if action.dest == "wanted":
        return WAIT_FOR
    return tuple(action.choices) if action.choices else ()


def _takes_value(action: Action) -> bool:
    return action.nargs != 0


def _bash() -> str:
    cases = []
    for name, spec in COMMANDS.items():
        words = "$(_holdfast_sessions)" if spec.names_session else " ".join(_WORDS.get(name, ()))
        options = " ".join(o for action in flags(name) for o in action.option_strings)
        cases.append(f'    {name}) options="{options}"; words="{words}" ;;')
    values = []
    for name in COMMANDS:
        for action in flags(name):
            if not _takes_value(action):
                continue
            chosen = " ".join(_values(action))
            patterns = "|".join(f"{name}:{option}" for option in action.option_strings)
            if action.dest == "kubeconfig":
                reply = 'compopt -o filenames; COMPREPLY=($(compgen -f -- "$word"))'
            elif action.dest == "cwd":
                reply = 'compopt -o filenames; COMPREPLY=($(compgen -d -- "$word"))'
            else:
                reply = f'COMPREPLY=($(compgen -W "{chosen}" -- "$word"))'
            values.append(f"    {patterns}) {reply}; return ;;")
    return _BASH.format(
        commands=" ".join(COMMANDS), cases="\n".join(cases), values="\n".join(values)
    )


_BASH: Final = """\
# bash completion for holdfast; put `source <(holdfast completion bash)` in ~/.bashrc
_holdfast_sessions() {{ "${{COMP_WORDS[0]}}" ls -o name 2>/dev/null; }}

_holdfast() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" options words i named=""
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  for (( i = 2; i < COMP_CWORD; i++ )); do
    if [[ "${{COMP_WORDS[i]}}" == -- ]]; then
      COMPREPLY=($(compgen -c -f -- "$word"))
      return
    fi
    [[ "${{COMP_WORDS[i]}}" == -* ]] || named=yes
  done
  case "$command:$previous" in
{values}
  esac
  case "$command" in
{cases}
    *) return ;;
  esac
  if [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [[ "$command" == run ]]; then
    COMPREPLY=($(compgen -c -- "$word"))
  elif [[ -z "$named" || "$previous" == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -F _holdfast holdfast kubectl-holdfast
"""


def _quoted(text: str) -> str:
    """Inside single quotes of a zsh argument specification."""
    for char in "\\[]:":
        text = text.replace(char, "\\" + char)
    return text.replace("'", "'\\''").replace("%%", "%")


def _help_of(action: Action) -> str:
    text = (action.help or "").replace("%(default)g", str(action.default))
    return text.replace("%(default)s", str(action.default)).split(" (default")[0].split(";")[0]


def _zsh() -> str:
    cases = []
    for name, spec in COMMANDS.items():
        lines = [f"        {name})", "          _arguments \\"]
        for action in flags(name):
            for option in action.option_strings:
                value = ""
                if _takes_value(action):
                    kind = f"({' '.join(_values(action))})" if _values(action) else ""
                    kind = "_files -/" if action.dest == "cwd" else kind or " "
                    value = f":{action.dest}:{kind}"
                lines.append(f"            '{option}[{_quoted(_help_of(action))}]{value}' \\")
        if name == "run":
            lines.append("            '*:::command:_normal'")
        elif spec.names_session:
            lines.append("            '1:session:_holdfast_sessions' '*:::command:_normal'")
        else:
            lines.append(f"            '1:word:({' '.join(_WORDS.get(name, ()))})'")
        cases.append("\n".join([*lines, "          ;;"]))
    commands = "\n".join(f"    '{name}:{_quoted(spec.summary)}'" for name, spec in COMMANDS.items())
    return _ZSH.format(commands=commands, cases="\n".join(cases))


_ZSH: Final = """\
#compdef holdfast kubectl-holdfast
# zsh completion for holdfast; save as _holdfast in a folder of your $fpath
_holdfast_sessions() {{
  local -a names
  names=(${{(f)"$("${{service:-holdfast}}" ls -o name 2>/dev/null)"}})
  compadd -a names
}}

_holdfast() {{
  local context state line
  local -a commands
  commands=(
{commands}
  )
  _arguments -C '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
{cases}
      esac
      ;;
  esac
}}

if [[ $funcstack[1] == _holdfast ]]; then
  _holdfast "$@"
else
  compdef _holdfast holdfast kubectl-holdfast
fi
"""


def _fish() -> str:
    lines = [
        "# fish completion for holdfast; save as ~/.config/fish/completions/holdfast.fish",
        "complete -c holdfast -f",
    ]
    for name, spec in COMMANDS.items():
        summary = _fish_quoted(spec.summary)
        lines.append(f"complete -c holdfast -n __fish_use_subcommand -a {name} -d {summary}")
        under = f"complete -c holdfast -n '__fish_seen_subcommand_from {name}'"
        if spec.names_session:
            lines.append(f"{under} -a '(holdfast ls -o name 2>/dev/null)'")
        elif name in _WORDS:
            lines.append(f"{under} -a '{' '.join(_WORDS[name])}'")
        elif name == "run":
            lines.append(f"{under} -a '(__fish_complete_command)'")
        for action in flags(name):
            parts = [
                f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}"
                for o in action.option_strings
            ]
            if _takes_value(action):
                parts.append("-r")
                values = "(__fish_complete_directories)" if action.dest == "cwd" else ""
                if values := values or " ".join(_values(action)):
                    parts.append(f"-a '{values}'")
            lines.append(f"{under} {' '.join(parts)} -d {_fish_quoted(_help_of(action))}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def kubectl() -> int:
    """`kubectl_complete-holdfast`, which kubectl asks what may follow `kubectl holdfast …`: the
    last word is the one that is being typed. The last line tells it not to offer files."""
    import sys

    *before, word = sys.argv[1:] or [""]
    sys.stdout.write("".join(f"{one}\n" for one in _offered(before, word)) + ":4\n")
    return 0


def _offered(before: list[str], word: str) -> list[str]:
    from holdfast.arguments import split, target_of
    from holdfast_wire.errors import HoldfastError

    command, *rest = before or [""]
    if not command:
        return [name for name in COMMANDS if name.startswith(word)]
    if command not in COMMANDS or "--" in rest:
        return []
    parser = parser_for("kubectl holdfast", command, cluster=True)
    known = {option: action for action in parser._actions for option in action.option_strings}
    if rest and rest[-1] in parser.takes_value:
        found = _values(known[rest[-1]])
    elif word.startswith("-"):
        found = tuple(known)
    elif COMMANDS[command].names_session:
        options, named, _ = split(rest, parser.takes_value, stop_at_word=False)
        try:
            target = target_of(parser, parser.parse_args(options))
            found = () if named else _names(target)
        except HoldfastError:
            return []  # a key press is no place to complain
    else:
        found = _WORDS.get(command, ())
    return [one for one in found if one.startswith(word)]


def _names(target: Target) -> tuple[str, ...]:
    from holdfast.places import reached

    return tuple(reached(target).names())
