"""Names of keys, and what a terminal sends for them. Pure.

Two spellings are read: `ctrl-\\` as people say it, and `C-\\` as tmux and emacs write it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast_wire.errors import BadRequest

_NAMED: Final = {
    "enter": b"\r",
    "return": b"\r",
    "tab": b"\t",
    "btab": b"\x1b[Z",
    "escape": b"\x1b",
    "esc": b"\x1b",
    "space": b" ",
    "backspace": b"\x7f",
    "bspace": b"\x7f",
    "delete": b"\x1b[3~",
    "insert": b"\x1b[2~",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "home": b"\x1b[H",
    "end": b"\x1b[F",
    "pageup": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
    "f1": b"\x1bOP",
    "f2": b"\x1bOQ",
    "f3": b"\x1bOR",
    "f4": b"\x1bOS",
    "f5": b"\x1b[15~",
    "f6": b"\x1b[17~",
    "f7": b"\x1b[18~",
    "f8": b"\x1b[19~",
    "f9": b"\x1b[20~",
    "f10": b"\x1b[21~",
    "f11": b"\x1b[23~",
    "f12": b"\x1b[24~",
}
_SHORT: Final = {"dc": "delete", "ic": "insert", "ppage": "pageup", "npage": "pagedown"}
_MODIFIERS: Final = {
    "c": "ctrl",
    "ctrl": "ctrl",
    "control": "ctrl",
    "^": "ctrl",
    "m": "alt",
    "alt": "alt",
    "meta": "alt",
}
_ADVICE: Final = "for example: C-c, Up, Enter, M-x, F5, a; several with spaces between"


class Key(NamedTuple):
    """One key press of a plain character, perhaps with ctrl; `code` is its Unicode number."""

    code: int
    ctrl: bool

    @property
    def legacy(self) -> bytes:
        """What a terminal sends that speaks no newer keyboard protocol."""
        return bytes([self.code & 0x1F]) if self.ctrl else chr(self.code).encode()

    def __str__(self) -> str:
        return f"ctrl-{chr(self.code)}" if self.ctrl else chr(self.code)


def encode_keys(text: str) -> bytes:
    """`C-c Up Enter` as bytes."""
    return b"".join(_encode_key(word) for word in text.split())


def _encode_key(word: str) -> bytes:
    modifiers, name = _modifiers(word)
    low = name.lower()
    code = _NAMED.get(_SHORT.get(low, low))
    if code is None and len(name) == 1:
        code = _control(name, word) if "ctrl" in modifiers else name.encode()
    elif code is not None and "ctrl" in modifiers:
        code = _control_named(code, word)
    if code is None:
        raise _unknown(word)
    return b"\x1b" + code if "alt" in modifiers else code


def _modifiers(word: str) -> tuple[set[str], str]:
    """`C-M-x` is {ctrl, alt} and x; `^c` is {ctrl} and c. A lone `-` or `^` is itself."""
    found: set[str] = set()
    if len(word) == 2 and word[0] == "^":
        return {"ctrl"}, word[1]
    while "-" in word[1:-1]:
        head, rest = word.split("-", 1)
        modifier = _MODIFIERS.get(head.lower())
        if modifier is None:
            break
        found.add(modifier)
        word = rest
    return found, word


def _control(char: str, word: str) -> bytes:
    if char == "?":
        return b"\x7f"
    upper = char.upper()
    if len(upper) == 1 and "@" <= upper <= "_":
        return bytes([ord(upper) & 0x1F])
    raise _unknown(word)


def _control_named(code: bytes, word: str) -> bytes:
    if code == b" ":
        return b"\0"
    if len(code) == 3 and code[:2] in (b"\x1b[", b"\x1bO"):
        return b"\x1b[1;5" + code[2:]
    if code.endswith(b"~"):
        return code[:-1] + b";5~"
    raise _unknown(word)


def _unknown(word: str) -> BadRequest:
    return BadRequest(f"{word!r} is not a key", _ADVICE)


def parse_detach_keys(text: str) -> tuple[Key, ...]:
    """`ctrl-\\,d` as keys; `none` is no keys at all. Only keys that every terminal can send."""
    if text.strip().lower() == "none":
        return ()
    keys = tuple(_detach_key(word) for word in text.split(","))
    if not keys[0].ctrl:
        raise BadRequest(
            f"detach keys {text!r} would swallow an ordinary key",
            "begin with a ctrl- key, for example 'ctrl-\\,d' or 'ctrl-],q', or say 'none'",
        )
    return keys


def _detach_key(word: str) -> Key:
    word = word.strip()
    modifiers, name = _modifiers(word)
    if len(name) != 1 or not name.isascii() or not name.isprintable() or "alt" in modifiers:
        raise BadRequest(
            f"{word!r} cannot be a detach key",
            "use characters and ctrl- keys with commas between, for example 'ctrl-\\,d'",
        )
    if "ctrl" not in modifiers:
        return Key(ord(name), False)
    if not "@" <= name.upper() <= "_":
        raise BadRequest(f"a terminal cannot send {word!r}", "try 'ctrl-\\,d'")
    return Key(ord(name.lower()), True)


def spell(keys: tuple[Key, ...]) -> str:
    return " then ".join(str(key) for key in keys)
