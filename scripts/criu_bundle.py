"""Makes the folder from which the node agent runs CRIU inside a user's container.

    python3 scripts/criu_bundle.py ROOT FOLDER        ROOT: a Debian with criu installed, / maybe

CRIU runs in the container's mount namespace with the agent's rights, so no file of the container
may decide what it does. Options see to most; two names are fixed in the programs and are changed
here: the loader's list of libraries to load first, and CRIU's notes about the kernel, which it
then finds in the folder of images, where the agent puts them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

PATCHES = {
    "ld.so": (b"/etc/ld.so.preload\0", b"/dev/null/no/files\0"),
    "criu": (b"/run/criu.kdat\0", b"./criu.kdat\0\0\0\0"),
}


def make_bundle(root: Path, to: Path) -> None:
    (to / "plugins").mkdir(parents=True, exist_ok=True)  # empty, but CRIU wants it there
    for path in libraries(root):
        name = "ld.so" if Path(path).name.startswith("ld-linux") else Path(path).name
        shutil.copy(Path(f"{root}{path}"), to / name)
    shutil.copy(root / "usr/sbin/criu", to / "criu")
    for name, (old, new) in PATCHES.items():
        patch(to / name, old, new)


def libraries(root: Path) -> list[str]:
    listed = subprocess.run(
        ["chroot", str(root), "ldd", "/usr/sbin/criu"], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def patch(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    if len(old) != len(new) or text.count(old) != 1:
        raise SystemExit(f"{path} is not the program this was written for: look at {old!r} in it")
    path.write_bytes(text.replace(old, new))


if __name__ == "__main__":
    make_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
