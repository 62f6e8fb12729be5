"""libghostty-vt's C interface, without parsing its declarations each time.

pyghostty has cffi read some thousand lines of C when it is imported. That is half of what a sidecar
needs to start, and what is loaded for it stays in memory. So they are read once, when holdfast is
installed (`python -m holdfast_sidecar.abi`), and what cffi made of them is kept beside this module,
under the digest of what it was made from. Where that is missing, pyghostty does it as ever.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

_PREFIX: Final = "_ghostty_"


def _package() -> Path:
    """Where pyghostty lies, without importing it."""
    spec = importlib.util.find_spec("pyghostty")
    if spec is None or spec.origin is None:
        raise ImportError("pyghostty is not installed: pip install 'holdfast[sidecar]'")
    return Path(spec.origin).parent


def _name(package: Path) -> str:
    told = hashlib.sha256()
    for source in ("_cdef.py", "_ffi.py"):
        told.update((package / source).read_bytes())
    told.update(str(sys.hexversion).encode())
    return _PREFIX + told.hexdigest()[:16]


def load() -> tuple[Any, Any]:
    """cffi's `ffi`, and the library opened with it."""
    package = _package()
    try:
        made = importlib.import_module(f"holdfast_sidecar.{_name(package)}")
    except ModuleNotFoundError:
        from pyghostty._ffi import ffi, lib

        return ffi, lib
    return made.ffi, made.ffi.dlopen(str(package / "_lib" / "libghostty-vt.so"))


def prepare() -> Path:
    """Read the declarations, and keep what comes of it. What was kept of another version goes."""
    import py_compile

    from cffi import FFI
    from cffi.recompiler import make_py_source
    from pyghostty._cdef import CDEF

    here, name = Path(__file__).parent, _name(_package())
    for old in here.glob(f"{_PREFIX}*.py"):
        old.unlink()
    ffi = FFI()
    ffi.cdef(CDEF)
    ffi.cdef(_TWINS)
    if ffi.sizeof("GhosttyPointS") != ffi.sizeof("GhosttyPoint"):
        raise ImportError("GhosttyPoint has another layout in this pyghostty")
    path = here / f"{name}.py"
    make_py_source(ffi, f"holdfast_sidecar.{name}", str(path))
    py_compile.compile(str(path))  # where it runs nothing can be written
    return path


# cffi cannot pass a union by value here; a struct of the same layout goes the same way.
_TWINS: Final = """
typedef struct { uint16_t x; uint32_t y; uint64_t _pad; } GhosttyPointValueS;
typedef struct { GhosttyPointTag tag; GhosttyPointValueS value; } GhosttyPointS;
"""

if __name__ == "__main__":
    prepare()
