"""What answers about jobs look like; part of schemas.py's components."""

from __future__ import annotations

from typing import Final

from holdfast_gateway.schemas import COUNT, FLAG, TEXT, TIME, every, maybe, ref, thing

_EXIT: Final = thing({"code": maybe({"type": "integer"}), "signal": maybe({"type": "integer"})})
_JOB: Final = {
    "id": TEXT,
    "state": {
        "type": "string",
        "description": "`starting`, `running`, `ended`; `gone`: it ended with the session.",
    },
    "actor": TEXT,
    "modality": TEXT,
    "key": maybe(TEXT),
    "command": maybe({"type": "string", "description": "What `/bin/sh -c` was given."}),
    "argv": maybe(every(TEXT)),
    "title": {"type": "string", "description": "The command as one line."},
    "cwd": maybe(TEXT),
    "pid": maybe(COUNT),
    "created": TIME,
    "started": maybe(TIME),
    "ended": maybe(TIME),
    "exit": maybe(_EXIT),
    "error": maybe({"type": "string", "description": "Why it could not be started."}),
    "output": thing(
        {
            "bytes": {**COUNT, "description": "Printed so far."},
            "oldest": {**COUNT, "description": "The first byte that can still be had."},
            "complete": {"type": "boolean", "description": "Nobody can print any more."},
        }
    ),
}
JOB: Final = thing(_JOB, "command", "argv")
STARTED: Final = thing(
    {**_JOB, "duplicate": {**FLAG, "description": "It had been started already."}}
)
JOBS: Final = thing({"jobs": every(ref("Job"))})
OUTPUT: Final = thing(
    {
        "job": ref("Job"),
        "start": COUNT,
        "end": {**COUNT, "description": "Where it goes on: the next `after`."},
        "lost": {**COUNT, "description": "Bytes after `after` that are not kept any more."},
        "complete": {"type": "boolean", "description": "There is no more, and will not be."},
        "text": TEXT,
        "base64": {"type": "string", "description": "Instead of `text`, if it is not UTF-8."},
    },
    "text",
    "base64",
)
COMPONENTS: Final = {"Job": JOB, "JobOutput": OUTPUT}
