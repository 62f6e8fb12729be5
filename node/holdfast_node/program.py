"""hold's own program, which a restored keeper goes on running: CRIU maps it from its file, and the
pod that a session comes to may have hold of another release.

So it comes along, as a part. Where the pod's own differs it is put beside that, under a name with
its hash, and the images are made to say that name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pycriu.images import fdinfo_pb2

from . import containers, criu_rpc
from .safe_open import Folder, as_user, folder

PART: Final = "hold"
BIN: Final = "/run/holdfast-bin"  # the operator mounts it there, in the sidecar too
_OWN: Final = "hold"
# Older releases stored no such part. The operator has their image put it there.
_FORMER: Final = "hold-former"
_FILES: Final = "files.img"
_MOST: Final = 16 << 20


def pour(keeper: int, write: Callable[[memoryview], None]) -> None:
    """The very file that the keeper runs, whatever has its name by now."""
    with (containers.PROC / str(keeper) / "exe").open("rb") as opened:
        write(memoryview(opened.read(_MOST)))


def put(parts: Path, images: Path, sidecar: int) -> None:
    """Where the images look for it."""
    files = list(criu_rpc.entries(images / _FILES, fdinfo_pb2.file_entry))
    ours = [file.reg for file in files if file.reg.name.startswith(f"{BIN}/{_OWN}")]
    if not ours:
        return
    try:
        program = (parts / PART).read_bytes()
    except FileNotFoundError:
        program = b""
    with as_user(*containers.ids_of(sidecar)), folder(sidecar, BIN) as there:
        program = program or _read(there, _FORMER)
        if not program:  # CRIU will say so, or it is the same
            return
        name = _OWN if _read(there, _OWN) == program else _name(program)
        if name != _OWN:
            with os.fdopen(there.create(name), "wb") as out:
                out.write(program)
                os.fchmod(out.fileno(), ours[0].mode & 0o777)
    for reg in ours:
        reg.name = f"{BIN}/{name}"
    criu_rpc.rewrite(images / _FILES, files)


def _read(there: Folder, name: str) -> bytes:
    try:
        with os.fdopen(there.read(name), "rb") as opened:
            return opened.read(_MOST)
    except FileNotFoundError:
        return b""


def _name(program: bytes) -> str:
    return f"{_OWN}-{hashlib.sha256(program).hexdigest()[:16]}"
