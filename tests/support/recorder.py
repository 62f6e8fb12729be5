"""A client to be killed: attaches where its file left off and appends what it gets to that file.

    python recorder.py SOCKET FILE

The file is records of `u64 seq, u32 length, bytes`; a kill cuts at most the last one short.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from holdfast_wire.frames import Output
from sidecar_kit import Client

HEADER = struct.Struct("!QI")


def read(path: Path) -> list[tuple[int, bytes]]:
    blob = path.read_bytes() if path.exists() else b""
    records, at = [], 0
    while at + HEADER.size <= len(blob):
        seq, length = HEADER.unpack_from(blob, at)
        data = blob[at + HEADER.size : at + HEADER.size + length]
        if len(data) < length:
            break
        records.append((seq, data))
        at += HEADER.size + length
    with path.open("ab") as file:
        file.truncate(at)
    return records


def main() -> None:
    path = Path(sys.argv[2])
    records = read(path)
    resume = None
    client = Client(Path(sys.argv[1]))
    if records:
        seq, data = records[-1]
        resume = {"session_id": client.ask("info")["session_id"], "seq": seq + len(data)}
    client.attach(mode="view", resume=resume)
    with path.open("ab", buffering=0) as file:
        while True:
            frame = client.next()
            if isinstance(frame, Output):
                file.write(HEADER.pack(frame.seq, len(frame.data)) + frame.data)


if __name__ == "__main__":
    main()
