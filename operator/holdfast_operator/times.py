"""Times of the API, which are for people and for schedules: no safety hangs on them. Pure."""

from __future__ import annotations

from datetime import datetime


def moment(text: object) -> datetime | None:
    """An RFC 3339 time; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else None


def stamp(wall: datetime) -> str:
    return wall.strftime("%Y-%m-%dT%H:%M:%SZ")


def at_minute(wall: datetime) -> str:
    return wall.strftime("%Y-%m-%d %H:%M UTC")


def at_second(wall: datetime) -> str:
    return wall.strftime("%Y-%m-%d %H:%M:%S UTC")


def length(seconds: float) -> str:
    """`4 min 10 s`; the two largest units, which is all that anybody reads."""
    left = max(0, round(seconds))
    found = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            found.append(f"{count} {unit}")
    return " ".join(found[:2]) or "0 s"
