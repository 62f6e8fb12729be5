"""The YAML that kubectl and its like write: block mappings and lists, scalars, and flow collections
as far as they are JSON. Pure.

A kubeconfig is read at every start, and a whole YAML library takes three times as long to load as
all else that an attach needs (docs/decisions/0030). Invariant: what `read` returns is what such a
library would; whatever is written in another way, or could be meant in two, is `Unreadable`, and
the caller asks somebody who knows all of YAML.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

_KEY: Final = re.compile(r"""([A-Za-z_][\w./@-]*|"[^"\\]*"|'[^']*'):(?:[ ]+|$)""", re.ASCII)
# What begins with one of these is something else than plain text.
_INDICATORS: Final = frozenset("&*!|>%@`{}[],?:#\"'")
# Numbers and times of every kind but the plain one; whether they are meant as text is not known.
_NUMERIC: Final = re.compile(
    r"[-+.]?[0-9][0-9.eE+_:TZ-]*|0[xob][0-9a-fA-F_]+|[-+]?\.(inf|nan)", re.I
)
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
# In one version of YAML they are booleans, in the other they are not.
_UNCLEAR: Final = frozenset(("y", "n", "yes", "no", "on", "off", "null", "true", "false"))
_PLAIN: Final = re.compile(r"[A-Za-z_/][\w./@+=-]*", re.ASCII)


class Unreadable(ValueError):
    """Not the YAML that is read here. It may be good YAML all the same."""


class _Line(NamedTuple):
    indent: int
    text: str


def read(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise Unreadable("it is not JSON") from error
    lines = _lines(text)
    if not lines:
        return None
    value, end = _block(lines, 0, lines[0].indent)
    if end != len(lines):
        raise Unreadable(f"{lines[end].text[:20]!r} is indented in no known way")
    return value


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(text.splitlines()):
        line = raw.rstrip(" ")
        bare = line.lstrip(" ")
        if not bare or bare.startswith("#") or (line == "---" and not found and number < 8):
            continue
        if "\t" in line or not line.isprintable() or line.startswith(("---", "...", "%")):
            raise Unreadable("tabs, control characters or several documents")
        found.append(_Line(len(line) - len(bare), bare))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unreadable("a key is there twice")
    return made


def _block(lines: list[_Line], at: int, indent: int) -> tuple[Any, int]:
    """The list or mapping that begins there, and where it ends."""
    if _is_item(lines[at].text):
        return _items(lines, at, indent)
    made: dict[str, Any] = {}
    while at < len(lines) and lines[at].indent == indent and not _is_item(lines[at].text):
        found = _KEY.match(lines[at].text)
        if found is None:
            raise Unreadable(f"{lines[at].text[:20]!r} is no key")
        named, rest = found.group(1), lines[at].text[found.end() :]
        key = named[1:-1] if named[0] in "\"'" else named
        if key in made or (named == key and key.lower() in _UNCLEAR):
            raise Unreadable(f"the key {key[:20]!r}")
        at += 1
        if _without_comment(rest) or not _has_block(lines, at, indent):
            made[key] = _scalar(rest)
        else:
            made[key], at = _block(lines, at, lines[at].indent)
    return made, at


def _items(lines: list[_Line], at: int, indent: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at].text):
        rest = lines[at].text[1:].lstrip(" ")
        if _KEY.match(rest) or _is_item(rest):
            # As if the item stood alone on its line, where it stands.
            lines[at] = _Line(indent + len(lines[at].text) - len(rest), rest)
            value, at = _block(lines, at, lines[at].indent)
        elif not _without_comment(rest) and at + 1 < len(lines) and lines[at + 1].indent > indent:
            value, at = _block(lines, at + 1, lines[at + 1].indent)
        else:
            value, at = _scalar(rest), at + 1
        made.append(value)
    return made, at


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _has_block(lines: list[_Line], at: int, indent: int) -> bool:
    """Whether what follows a key is its value: deeper, or a list beside it."""
    if at == len(lines):
        return False
    return lines[at].indent > indent or (lines[at].indent == indent and _is_item(lines[at].text))


def _without_comment(text: str) -> str:
    return "" if text.startswith("#") else text


def _scalar(text: str) -> Any:
    text = _without_comment(text)
    if text[:1] in ("[", "{", '"'):
        if "\\u" in text:
            raise Unreadable("JSON has characters in two halves, YAML has not")
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except ValueError as error:
            raise Unreadable("a quoted text or a collection that is not JSON's") from error
    if text[:1] == "'":
        inner = text[1:-1]
        if len(text) < 2 or text[-1] != "'" or "'" in inner.replace("''", ""):
            raise Unreadable("a quoted text that does not end where its line does")
        return inner.replace("''", "'")
    text = text.partition(" #")[0].rstrip(" ")
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text) and len(text) < 16:
        return int(text)
    odd = text[0] in _INDICATORS or ": " in text or text.endswith(":")
    if odd or text.startswith("- ") or text.lower() in _UNCLEAR or _NUMERIC.fullmatch(text):
        raise Unreadable(f"{text[:1]!r}… may mean several things")
    return text


def write(value: Any, indent: int = 0) -> str:
    """YAML of what JSON can hold, as kubectl prints it."""
    lead = " " * indent
    if isinstance(value, dict) and value:
        parts = [f"{lead}{_text(str(key))}:{_under(item, indent)}" for key, item in value.items()]
        return "".join(parts)
    if isinstance(value, list) and value:
        return "".join(f"{lead}-{_beside(item, indent)}" for item in value)
    return f"{lead}{_leaf(value)}\n"


def _under(item: Any, indent: int) -> str:
    if isinstance(item, dict) and item:
        return "\n" + write(item, indent + 2)
    if isinstance(item, list) and item:
        return "\n" + write(item, indent)
    return f" {_leaf(item)}\n"


def _beside(item: Any, indent: int) -> str:
    if isinstance(item, dict | list) and item:
        return " " + write(item, indent + 2).lstrip(" ")
    return f" {_leaf(item)}\n"


def _leaf(value: Any) -> str:
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _UNCLEAR:
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return {"\n": "\\n", "\t": "\\t"}.get(char) or (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 1 << 16
        else f"\\U{code:08x}"
    )
