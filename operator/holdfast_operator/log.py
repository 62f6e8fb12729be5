"""One line of JSON for each thing that happened. What is logged is named field by field: no
object, no header and no environment is ever logged whole, so no secret can be."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

from holdfast_operator.text import plain

_logger: Final = logging.getLogger("holdfast.operator")
_FIELDS: Final = "holdfast_fields"


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": plain(record.getMessage(), 4096),
        }
        for name, value in getattr(record, _FIELDS, {}).items():
            line[name] = plain(value, 4096) if isinstance(value, str) else value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # kopf says every event it passes on; ours say what came of it.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level)))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def _log(level: int, message: str, fields: dict[str, Any], error: BaseException | None) -> None:
    kept = {name: value for name, value in fields.items() if value is not None}
    info = (type(error), error, error.__traceback__) if error else None
    _logger.log(level, "%s", message, extra={_FIELDS: kept}, exc_info=info)


def debug(message: str, **fields: Any) -> None:
    _log(logging.DEBUG, message, fields, None)


def info(message: str, **fields: Any) -> None:
    _log(logging.INFO, message, fields, None)


def warning(message: str, **fields: Any) -> None:
    _log(logging.WARNING, message, fields, None)


def fault(message: str, error: BaseException, **fields: Any) -> None:
    """Something that ought not to happen: with its traceback."""
    _log(logging.ERROR, message, fields, error)
