"""One line of JSON for each thing that happened. What is logged is named field by field: no object
and no environment is ever logged whole, so no secret can be."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

_logger: Final = logging.getLogger("holdfast.node")
_FIELDS: Final = "holdfast_fields"
_LONGEST: Final = 4096


def plain(value: object) -> object:
    """Nothing in it acts in the terminal of whoever reads it."""
    if not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() else " " for c in value)[:_LONGEST]


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": plain(record.getMessage()),
        }
        for name, value in getattr(record, _FIELDS, {}).items():
            line[name] = plain(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def info(message: str, **fields: Any) -> None:
    _logger.info("%s", message, extra={_FIELDS: fields})


def warning(message: str, **fields: Any) -> None:
    _logger.warning("%s", message, extra={_FIELDS: fields})


def fault(message: str, error: BaseException, **fields: Any) -> None:
    """Something that ought not to happen: with its traceback."""
    info = (type(error), error, error.__traceback__)
    _logger.error("%s", message, extra={_FIELDS: fields}, exc_info=info)
