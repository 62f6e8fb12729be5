"""CRIU as this machine has it, for sessions without a cluster: found, checked, or what to do.

In a cluster CRIU comes with the agent, as a folder (scripts/criu_bundle.py). Here it is a program
on PATH, and a folder of the same form is made of links: to it and to its loader, or to all that
such a folder has, and to the library that hold is built with and that CRIU loads.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from holdfast_wire.errors import Unsupported

from . import inside

LEAST: Final = (4, 0)
_VARIABLE: Final = "HOLDFAST_CRIU"
_SECONDS: Final = 20
_PLUGINS: Final = "plugins"
# Where Debian has CRIU's Python package, which is not on PyPI and so in no virtual environment.
_DEBIAN: Final = Path("/usr/lib/python3/dist-packages/pycriu")
_INSTALL: Final = "install CRIU 4.0 or later: criu.org/Packages"


def bundle(folder: Path, hold: Path) -> Path:
    """CRIU in the form that the engine wants, made in `folder`. `hold` is the program. Raises
    Unsupported."""
    program = _program()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    # A loader alone says nothing: some systems have one beside all of their programs.
    if all((program.parent / name).exists() for name in (inside.LOADER, _PLUGINS)):
        for part in program.parent.iterdir():
            (folder / part.name).symlink_to(part)
    else:
        _link(program, folder)
    (folder / inside.TERMINALS).unlink(missing_ok=True)
    (folder / inside.TERMINALS).symlink_to(hold.absolute().with_name(inside.TERMINALS))
    _check_version(folder, program)
    _find_pycriu()
    return folder


def _program() -> Path:
    chosen = os.environ.get(_VARIABLE)
    found = shutil.which(chosen or "criu", path=None if chosen else _path())
    if found is not None:
        return Path(found).resolve()
    if chosen:
        raise Unsupported(
            f"{_VARIABLE} is {chosen}, which cannot be run", "set it to the program criu"
        )
    raise Unsupported("CRIU is missing: there is no program criu on PATH", _INSTALL)


def _path() -> str:
    """It is in sbin, which not every root has on PATH."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def _link(program: Path, folder: Path) -> None:
    (folder / _PLUGINS).mkdir(mode=0o700)
    (folder / "criu").symlink_to(program)
    (folder / inside.LOADER).symlink_to(_loader(program))


def _loader(program: Path) -> str:
    """The path in its program header PT_INTERP."""
    with program.open("rb") as file:
        head = file.read(4096)
    match = re.search(rb"/[\w./-]*ld-[\w.-]+\.so\.\d+(?=\0)", head)
    if not head.startswith(b"\x7fELF") or match is None:
        raise Unsupported(f"{program} is not the program CRIU", f"set {_VARIABLE} to that")
    return match.group().decode()


def _check_version(found: Path, program: Path) -> None:
    try:
        done = subprocess.run(
            inside.criu(str(found), "--version"), env=inside.environment(str(found)),
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(f"{program} cannot be run: {error}", _INSTALL) from error
    match = re.search(r"Version: (\d+)\.(\d+)", done.stdout)
    if match is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unsupported(
            f"{program} does not say its version{f': {said[-1]}' if said else ''}", _INSTALL
        )
    version = int(match[1]), int(match[2])
    if version < LEAST:
        raise Unsupported(f"{program} is CRIU {match[1]}.{match[2]}, which is too old", _INSTALL)


def _find_pycriu() -> None:
    if importlib.util.find_spec("google.protobuf") is None:
        raise Unsupported("the package protobuf is missing", "pip install 'holdfast[hibernate]'")
    if importlib.util.find_spec("pycriu") is not None:
        return
    if not (_DEBIAN / "__init__.py").exists():
        raise Unsupported(
            "CRIU's Python package pycriu is missing",
            "on Debian: apt install python3-pycriu; elsewhere it is in CRIU's sources, lib/pycriu",
        )
    spec = importlib.util.spec_from_file_location(
        "pycriu", _DEBIAN / "__init__.py", submodule_search_locations=[str(_DEBIAN)]
    )
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
    package = importlib.util.module_from_spec(spec)
    sys.modules["pycriu"] = package
    spec.loader.exec_module(package)
