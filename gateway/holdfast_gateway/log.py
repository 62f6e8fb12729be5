"""Structured lines on stderr: `time level event key=value …`. A token never reaches a log,
because no code here logs a query, a header or a whole URL."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

_NAME: Final = "holdfast.gateway"
_log: Final = logging.getLogger(_NAME)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} {record.levelname.lower()} {record.getMessage()}"
        if record.exc_info:
            line += " trace=" + json.dumps(self.formatException(record.exc_info))
        return line


def to_stderr(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It quotes requests that it cannot parse, headers and all. Other errors http.py logs.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


def _line(event: str, facts: dict[str, object]) -> str:
    # JSON quoting keeps a hostile name from forging a line or moving the reader's cursor.
    return " ".join(
        [event, *(f"{key}={json.dumps(value, default=str)}" for key, value in facts.items())]
    )


def info(event: str, **facts: object) -> None:
    _log.info("%s", _line(event, facts))


def debug(event: str, **facts: object) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", _line(event, facts))


def warning(event: str, **facts: object) -> None:
    _log.warning("%s", _line(event, facts))


def fault(event: str, error: Exception, **facts: object) -> None:
    """A fault of our own, with its traceback."""
    _log.error("%s", _line(event, facts), exc_info=error)
