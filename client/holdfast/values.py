"""What may be written as an option's value. Pure."""

from __future__ import annotations

from holdfast_wire.errors import BadRequest
from holdfast_wire.ids import terminal_size


def size(text: str) -> tuple[int, int]:
    columns, _, rows = text.lower().partition("x")
    if not (columns.isascii() and columns.isdigit() and rows.isascii() and rows.isdigit()):
        raise BadRequest(f"{text!r} is not a size", "give columns and rows, such as 120x40")
    if len(columns) > 9 or len(rows) > 9:
        raise BadRequest("a terminal cannot be that large", "give a size such as 120x40")
    return terminal_size(int(columns), int(rows))


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:  # also refuses nan
        raise BadRequest(f"{text!r} is not a number of seconds", "for example: 30, or 0.5")
    return value


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise BadRequest(f"{text!r} is not a number", "give a whole number, 0 or more")
    return int(text)


def key(text: str) -> str:
    if not text or len(text.encode(errors="replace")) > 255:
        raise BadRequest("an idempotency key has 1 to 255 bytes", "for example: --key deploy-42")
    return text


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadRequest(f"{text!r} is not a variable", "for example: --env CI=1")
    return name, value
