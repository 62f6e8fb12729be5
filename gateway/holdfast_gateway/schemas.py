"""What answers look like, as JSON Schema: for openapi.py, and inlined for the tools of MCP. Objects
may have more than is said here: a newer sidecar says more."""

from __future__ import annotations

from typing import Any, Final

from holdfast_gateway.fields import Schema
from holdfast_wire.errors import BY_CODE, Disposition

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "number", "description": "Seconds since 1970, UTC."}
SEQ: Final[Schema] = {
    **COUNT,
    "description": "Position in the session's output, in bytes from its first; never reset.",
}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def every(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def thing(properties: dict[str, Schema], *optional: str, says: str = "") -> Schema:
    """An object that has all of these but the optional ones."""
    told: Schema = {"type": "object", "properties": properties}
    if required := [name for name in properties if name not in optional]:
        told["required"] = required
    return {**told, "description": says} if says else told


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


NOTHING: Final[Schema] = {"type": "object"}
_EXIT: Final = thing({"code": maybe({"type": "integer"}), "signal": maybe({"type": "integer"})})
_PROCESS: Final = thing({"pid": COUNT, "name": maybe(TEXT)})
_LISTENER: Final = thing({"protocol": TEXT, "address": TEXT, "port": maybe(COUNT)})

COMPONENTS: Final[dict[str, Schema]] = {
    "Error": thing(
        {
            "error": thing(
                {
                    "code": {
                        "type": "string",
                        "description": f"For programs: {', '.join(sorted(BY_CODE))}; perhaps more.",
                    },
                    "disposition": {
                        "type": "string",
                        "enum": [one.value for one in Disposition],
                        "description": "`retry`: the same may succeed later. `permanent`: it will"
                        " not. `refused`: a right is missing.",
                    },
                    "message": {"type": "string", "description": "What happened."},
                    "advice": {"type": "string", "description": "What to do about it; or empty."},
                }
            )
        }
    ),
    "State": thing(
        {
            "activity": {
                "type": "string",
                "description": "`running`, `prompt` (a shell's), `reading` (waits for input),"
                " `password` (for input that is not shown), `frozen`, `ended`; of a session that is"
                " not reached `unavailable`, or its phase.",
            },
            "process": maybe(_PROCESS),
            "sentence": {"type": "string", "description": "The same for people."},
            "exit": maybe(_EXIT),
        }
    ),
    "Client": thing(
        {
            "client": TEXT,
            "actor": TEXT,
            "modality": TEXT,
            "mode": {"type": "string", "enum": ["write", "view"]},
            "lead": {"type": "boolean", "description": "The session has this one's size."},
            "columns": COUNT,
            "rows": COUNT,
            "since": TIME,
        }
    ),
    "Session": thing(
        {
            "session": TEXT,
            "session_id": maybe(TEXT),
            "state": ref("State"),
            "clients": every(ref("Client")),
            "namespace": TEXT,
            "phase": TEXT,
            "epoch": maybe(COUNT),
            "suspended": thing(
                {
                    "wakes": {
                        "type": "string",
                        "enum": ["asked", "needed", "coming"],
                        "description": "`asked`: a person suspended it, and it goes on when"
                        " somebody asks for it. `needed`: nobody used it, and it goes on when"
                        " somebody does. `coming`: it is about to.",
                    },
                    "since": TEXT,
                    "may": {**FLAG, "description": "Whether you have the right to wake it."},
                },
                says="Of a suspended one.",
            ),
            "node": maybe(TEXT),
            "command": maybe(every(TEXT)),
            "created": maybe(TIME),
            "idle_seconds": NUMBER,
            "pid": COUNT,
            "seq": SEQ,
            "oldest": {**COUNT, "description": "The first seq that can still be had."},
            "columns": maybe(COUNT),
            "rows": maybe(COUNT),
            "title": TEXT,
            "holder": maybe({**TEXT, "description": "The actor who has the turn."}),
            "lead": maybe(TEXT),
            "exit": maybe(_EXIT),
        },
        *("namespace", "phase", "epoch", "suspended", "node", "command", "created"),
        *("idle_seconds", "pid", "seq", "oldest", "columns", "rows", "title"),
        *("holder", "lead", "exit"),
    ),
    "Screen": thing(
        {
            "seq": SEQ,
            "columns": COUNT,
            "rows": COUNT,
            "text": TEXT,
            "truncated": {"type": "boolean", "description": "Only the last of it is here."},
            "cursor": thing({"column": COUNT, "row": COUNT, "visible": FLAG}),
            "title": TEXT,
            "alternate": FLAG,
        }
    ),
    "Port": thing(
        {
            "protocol": {"type": "string", "enum": ["tcp", "unix"]},
            "address": {"type": "string", "description": "Of the machine; or the socket's path."},
            "port": maybe(COUNT),
            "pid": COUNT,
            "name": TEXT,
            "since": {**TIME, "description": "When this process began; UTC, in seconds."},
        }
    ),
    "Process": thing(
        {
            "pid": COUNT,
            "ppid": COUNT,
            "pgid": COUNT,
            "state": {"type": "string", "description": "As in /proc: R, S, D, T, Z."},
            "name": TEXT,
            "command": every(TEXT),
            "exe": TEXT,
            "cwd": TEXT,
            "uid": {"type": "integer"},
            "started_ms": {**COUNT, "description": "Since the machine's start."},
            "cpu_ms": maybe({**COUNT, "description": "How long it has computed, in all."}),
            "fds": every(thing({"fd": COUNT, "target": TEXT})),
            "listening": every(_LISTENER),
        }
    ),
    "Graph": thing(
        {
            "processes": every(ref("Process")),
            "foreground_pgid": maybe(COUNT),
            "ports": every(ref("Port")),
            "state": ref("State"),
        },
        says="All of one look.",
    ),
    "Taken": thing(
        {
            "order": {**COUNT, "description": "The session's number of this input."},
            "duplicate": {"type": "boolean", "description": "It had been taken already."},
        }
    ),
    "Run": thing(
        {
            "exit_code": maybe({"type": "integer", "description": "null: not known."}),
            "output": {"type": "string", "description": "As it reads on a screen."},
            "duplicate": FLAG,
            "order": COUNT,
            "seq_start": SEQ,
            "seq_end": SEQ,
            "truncated": FLAG,
        },
        *("seq_start", "seq_end", "truncated"),
    ),
    "Record": thing(
        {
            "time": TIME, "kind": TEXT, "actor": TEXT, "order": COUNT, "number": COUNT,
            "previous": {"type": "string", "description": "SHA-256 of the record before."},
        },
        *("actor", "order", "number", "previous"),
        says="By `kind`: who came and went, who typed how much, ran what. Records are numbered and"
        " linked in a chain.",
    ),
}  # fmt: skip

SESSIONS: Final = thing({"sessions": every(ref("Session"))})
JOURNAL: Final = thing(
    {
        "records": every(ref("Record")),
        "next": maybe({"type": "integer", "description": "`after` of the next page; null: none."}),
        "count": COUNT,
        "head": {"type": "string", "description": "SHA-256 of the last record."},
        "shown": {
            "type": "object",
            "additionalProperties": TEXT,
            "description": "How actors' names are shown to people, where that is not as they are.",
        },
    },
    *("next", "count", "head"),
)


def inlined(schema: Any) -> Any:
    """Without references, for where there are no components."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return inlined(COMPONENTS[str(schema["$ref"]).rpartition("/")[2]])
        return {key: inlined(value) for key, value in schema.items()}
    return [inlined(value) for value in schema] if isinstance(schema, list) else schema
