"""libghostty-vt through cffi: the one module that knows its C interface.

A `Terminal` is not safe to use from two threads at once; `emulator.py` owns it. `feed` releases the
GIL, so the loop goes on reading the PTY while a large chunk is being interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast_sidecar import abi
from holdfast_wire.errors import Internal

ffi, lib = abi.load()

# Scrollback is bounded in bytes, because the library reuses its pages only then: bounded in lines
# it unmaps and faults them anew, at a fifth of the speed. Found by measuring: a row takes 8 bytes a
# column, and pages have overheads; this keeps at least the lines asked for at any width, and what
# is too much is cut off when they are read.
_CELL_BYTES: Final = 8
_ROW_BYTES: Final = 200
_SPARE_ROWS: Final = 1000
_SPARE_BYTES: Final = 2 << 20
# A sequence in progress is kept so that a snapshot can stand anywhere, also inside one. In a longer
# one (an image, a hostile endless string) the library keeps nothing, and will not encode either.
_CONTINUATION_BYTES: Final = 4 << 20
_ENCODE_FIRST_TRY: Final = 1 << 14

_SCREEN: Final = lib.GHOSTTY_POINT_TAG_SCREEN

_CTYPES: Final = {
    "COLS": "uint16_t",
    "ROWS": "uint16_t",
    "CURSOR_X": "uint16_t",
    "CURSOR_Y": "uint16_t",
    "CURSOR_PENDING_WRAP": "bool",
    "CURSOR_VISIBLE": "bool",
    "ACTIVE_SCREEN": "GhosttyTerminalScreen",
    "SCROLLBACK_ROWS": "size_t",
    "TITLE": "GhosttyString",
    "PWD": "GhosttyString",
    "COLOR_FOREGROUND": "GhosttyColorRgb",
    "COLOR_BACKGROUND": "GhosttyColorRgb",
    "COLOR_CURSOR": "GhosttyColorRgb",
    "COLOR_FOREGROUND_DEFAULT": "GhosttyColorRgb",
    "COLOR_BACKGROUND_DEFAULT": "GhosttyColorRgb",
    "COLOR_CURSOR_DEFAULT": "GhosttyColorRgb",
    "COLOR_PALETTE": "GhosttyColorRgb[256]",
    "COLOR_PALETTE_DEFAULT": "GhosttyColorRgb[256]",
}

_WRITTEN_BEFORE: Final = {"palette", "modes", "tabstops"}

Rgb = tuple[int, int, int]
# What a program that asks gets to hear when nobody is attached: light on dark, as most are.
_FOREGROUND: Final[Rgb] = (0xE6, 0xE6, 0xE6)
_BACKGROUND: Final[Rgb] = (0x11, 0x14, 0x18)


def _by_value(name: str, signature: str) -> Any:
    """The function under a signature in which a struct stands for its union (`abi.py`)."""
    return ffi.cast(signature, ffi.addressof(lib, name))


_GRID_REF: Final = _by_value(
    "ghostty_terminal_grid_ref",
    "GhosttyResult(*)(GhosttyTerminal, GhosttyPointS, GhosttyGridRef*)",
)
_TRACK: Final = _by_value(
    "ghostty_terminal_grid_ref_track",
    "GhosttyResult(*)(GhosttyTerminal, GhosttyPointS, GhosttyTrackedGridRef*)",
)


def _check(result: int, what: str) -> None:
    if result != lib.GHOSTTY_SUCCESS:
        raise Internal(f"the terminal emulator failed at {what}: {result}")


def _sized(ctype: str) -> Any:
    """A zeroed struct whose `size` fields, its own and nested ones, say how large it is."""
    pointer = ffi.new(ctype + "*")
    _set_sizes(pointer)
    return pointer


def _set_sizes(pointer: Any) -> None:
    kind = ffi.typeof(pointer).item
    for name, field in kind.fields:
        if name == "size":
            pointer.size = ffi.sizeof(kind)
        elif field.type.kind == "struct":
            _set_sizes(ffi.addressof(pointer[0], name))


def _rgb(value: Any) -> Rgb:
    return value.r, value.g, value.b


class TrackedRow:
    """A row that stays the same one while lines are added below and dropped above."""

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.ghostty_tracked_grid_ref_free)
        self._point = ffi.new("GhosttyPointCoordinate*")

    def row(self) -> int | None:
        """Where it is now; None if it is gone."""
        if not lib.ghostty_tracked_grid_ref_has_value(self._handle):
            return None
        result = lib.ghostty_tracked_grid_ref_point(self._handle, _SCREEN, self._point)
        return int(self._point.y) if result == lib.GHOSTTY_SUCCESS else None


class Terminal:
    def __init__(self, columns: int, rows: int, scrollback: int) -> None:
        handle = ffi.new("GhosttyTerminal*")
        _check(lib.ghostty_terminal_new(ffi.NULL, handle, columns, rows), "new")
        self._adopt(handle[0], scrollback)

    def _adopt(self, handle: Any, scrollback: int) -> None:
        self._handle = ffi.gc(handle, lib.ghostty_terminal_free)
        self.scrollback_limit = scrollback
        self._callbacks: list[Any] = []
        # Made once: filling in a struct's sizes costs more than most calls that take it.
        self._ref = _sized("GhosttyGridRef")
        self._selection = _sized("GhosttySelection")
        self._options = _sized("GhosttyFormatterTerminalOptions")
        self._options.selection = self._selection
        self._point = ffi.new("GhosttyPointS*")
        self._set("SCROLLBACK_MAX_LINES", "size_t", 1 << 40)
        self._bound_scrollback(self.columns)
        self._set("CONTINUATION_MAX_BYTES", "size_t", _CONTINUATION_BYTES)
        # Images would be kept in memory and never shown by a text client.
        self._set("KITTY_IMAGE_STORAGE_LIMIT", "uint64_t", 0)
        for name, rgb in (("COLOR_FOREGROUND", _FOREGROUND), ("COLOR_BACKGROUND", _BACKGROUND)):
            self._set(name, "GhosttyColorRgb", dict(zip("rgb", rgb, strict=True)))

    def _bound_scrollback(self, columns: int) -> None:
        rows = self.scrollback_limit + _SPARE_ROWS if self.scrollback_limit else 0
        limit = rows * (columns * _CELL_BYTES + _ROW_BYTES) + _SPARE_BYTES
        self._set("SCROLLBACK_MAX_BYTES", "size_t", limit)

    def _set(self, option: str, ctype: str, value: Any) -> None:
        key = getattr(lib, f"GHOSTTY_TERMINAL_OPT_{option}")
        _check(lib.ghostty_terminal_set(self._handle, key, ffi.new(ctype + "*", value)), option)

    def _get(self, name: str) -> Any:
        """A value, or None where the terminal has none."""
        ctype = _CTYPES[name]
        out = ffi.new(ctype if ctype.endswith("]") else ctype + "*")
        result = lib.ghostty_terminal_get(
            self._handle, getattr(lib, f"GHOSTTY_TERMINAL_DATA_{name}"), out
        )
        if result == lib.GHOSTTY_NO_VALUE:
            return None
        _check(result, name)
        return out if ctype.endswith("]") else out[0]

    # -- bytes in ---------------------------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        buffer = ffi.from_buffer("uint8_t[]", data)
        lib.ghostty_terminal_vt_write(self._handle, buffer, len(buffer))

    def resize(self, columns: int, rows: int) -> None:
        self._bound_scrollback(max(columns, self.columns))
        # The cell's pixels only matter to programs that ask for them; these are a usual font's.
        _check(lib.ghostty_terminal_resize(self._handle, columns, rows, 8, 16), "resize")
        self._bound_scrollback(columns)

    def on_reply(self, write: Callable[[bytes], None], version: str) -> None:
        """`write` gets what a terminal answers to a program's questions."""
        text = ffi.new("char[]", version.encode())
        name = ffi.new("GhosttyString*", {"ptr": ffi.cast("uint8_t*", text), "len": len(version)})

        def reply(_terminal: Any, _user: Any, data: Any, length: int) -> None:
            write(ffi.buffer(data, length)[:])

        def size(_terminal: Any, _user: Any, out: Any) -> bool:
            out.columns, out.rows = self.columns, self.rows
            out.cell_width, out.cell_height = 8, 16
            return True

        callbacks = {
            "WRITE_PTY": ffi.callback("GhosttyTerminalWritePtyFn", reply),
            "XTVERSION": ffi.callback("GhosttyTerminalXtversionFn", lambda _t, _u: name[0]),
            "SIZE": ffi.callback("GhosttyTerminalSizeFn", size),
        }
        self._callbacks = [text, name, *callbacks.values()]
        for option, callback in callbacks.items():
            key = getattr(lib, f"GHOSTTY_TERMINAL_OPT_{option}")
            _check(lib.ghostty_terminal_set(self._handle, key, callback), option)

    # -- facts out --------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        return int(self._get("COLS"))

    @property
    def rows(self) -> int:
        return int(self._get("ROWS"))

    @property
    def cursor(self) -> tuple[int, int]:
        return int(self._get("CURSOR_X")), int(self._get("CURSOR_Y"))

    @property
    def cursor_visible(self) -> bool:
        return bool(self._get("CURSOR_VISIBLE"))

    @property
    def pending_wrap(self) -> bool:
        return bool(self._get("CURSOR_PENDING_WRAP"))

    @property
    def alternate(self) -> bool:
        return bool(self._get("ACTIVE_SCREEN") == lib.GHOSTTY_TERMINAL_SCREEN_ALTERNATE)

    @property
    def history(self) -> int:
        return int(self._get("SCROLLBACK_ROWS"))

    @property
    def title(self) -> bytes:
        return self._string("TITLE")

    def _string(self, name: str) -> bytes:
        value = self._get(name)
        if value is None or not value.len:
            return b""
        return bytes(ffi.buffer(value.ptr, value.len)).split(b"\0", 1)[0]

    def mode(self, number: int, *, ansi: bool = False) -> bool:
        config = ffi.new("GhosttyTerminalModeConfig*")
        config.mode = (number & 0x7FFF) | (int(ansi) << 15)
        _check(
            lib.ghostty_terminal_get(self._handle, lib.GHOSTTY_TERMINAL_DATA_MODE, config), "mode"
        )
        return bool(config.value)

    def changed_palette(self) -> list[tuple[int, Rgb]]:
        now, usual = self._get("COLOR_PALETTE"), self._get("COLOR_PALETTE_DEFAULT")
        if bytes(ffi.buffer(now)) == bytes(ffi.buffer(usual)):
            return []
        return [(i, _rgb(now[i])) for i in range(256) if _rgb(now[i]) != _rgb(usual[i])]

    def changed_colour(self, name: str) -> Rgb | None:
        """`FOREGROUND`, `BACKGROUND` or `CURSOR`, if the program set it."""
        now = self._get(f"COLOR_{name}")
        usual = self._get(f"COLOR_{name}_DEFAULT")
        if now is None or (usual is not None and _rgb(now) == _rgb(usual)):
            return None
        return _rgb(now)

    def cursor_shape(self) -> int:
        """As DECSCUSR numbers it: 1 block, 3 underline, 5 bar; one more if steady."""
        state = ffi.new("GhosttyRenderState*")
        _check(lib.ghostty_render_state_new(ffi.NULL, state), "render state")
        try:
            _check(lib.ghostty_render_state_update(state[0], self._handle), "render state")
            style = ffi.new("GhosttyRenderStateCursorVisualStyle*")
            blink = ffi.new("bool*")
            key = lib.GHOSTTY_RENDER_STATE_DATA_CURSOR_VISUAL_STYLE
            _check(lib.ghostty_render_state_get(state[0], key, style), "cursor style")
            key = lib.GHOSTTY_RENDER_STATE_DATA_CURSOR_BLINKING
            _check(lib.ghostty_render_state_get(state[0], key, blink), "cursor blink")
        finally:
            lib.ghostty_render_state_free(state[0])
        base = {
            lib.GHOSTTY_RENDER_STATE_CURSOR_VISUAL_STYLE_UNDERLINE: 3,
            lib.GHOSTTY_RENDER_STATE_CURSOR_VISUAL_STYLE_BAR: 5,
        }.get(style[0], 1)
        return base if blink[0] else base + 1

    def continuation(self) -> bytes:
        """The bytes of a sequence, or of a UTF-8 character, that has begun and not ended."""
        needed = ffi.new("size_t*")
        lib.ghostty_terminal_continuation_buf(self._handle, ffi.NULL, 0, needed)
        if not needed[0]:
            return b""
        buffer = ffi.new("uint8_t[]", needed[0])
        result = lib.ghostty_terminal_continuation_buf(self._handle, buffer, needed[0], needed)
        _check(result, "continuation")
        return bytes(ffi.buffer(buffer, needed[0]))

    # -- rows, addressed from the oldest line of scrollback ---------------------------------------

    def track(self, row: int) -> TrackedRow:
        self._point.tag = _SCREEN
        self._point.value.x, self._point.value.y = 0, row
        handle = ffi.new("GhosttyTrackedGridRef*")
        _check(_TRACK(self._handle, self._point[0], handle), "track")
        return TrackedRow(handle[0])

    def _at(self, column: int, row: int) -> Any:
        self._point.tag = _SCREEN
        self._point.value.x, self._point.value.y = column, row
        _check(_GRID_REF(self._handle, self._point[0], self._ref), f"cell {column},{row}")
        return self._ref

    def wraps(self, row: int) -> bool:
        """Whether the row goes on in the next."""
        raw, flag = ffi.new("GhosttyRow*"), ffi.new("bool*")
        _check(lib.ghostty_grid_ref_row(self._at(0, row), raw), "row")
        _check(lib.ghostty_row_get(raw[0], lib.GHOSTTY_ROW_DATA_WRAP, flag), "row wrap")
        return bool(flag[0])

    def used_cells(self, row: int) -> list[bool]:
        """Which cells have anything: one never touched, or erased to the default, is all zero."""
        ref, cell = self._at(0, row), ffi.new("GhosttyCell*")
        read, used = lib.ghostty_grid_ref_cell, []
        for column in range(self.columns):
            ref.x = column  # a reference may be moved along its own row
            read(ref, cell)
            used.append(cell[0] != 0)
        return used

    def _cell(self, column: int, row: int, field: str, ctype: str) -> Any:
        cell, out = ffi.new("GhosttyCell*"), ffi.new(ctype + "*")
        _check(lib.ghostty_grid_ref_cell(self._at(column, row), cell), "cell")
        _check(
            lib.ghostty_cell_get(cell[0], getattr(lib, f"GHOSTTY_CELL_DATA_{field}"), out), field
        )
        return out[0]

    def is_wide_tail(self, column: int, row: int) -> bool:
        wide = self._cell(column, row, "WIDE", "GhosttyCellWide")
        return bool(wide == lib.GHOSTTY_CELL_WIDE_SPACER_TAIL)

    def is_wide_head(self, column: int, row: int) -> bool:
        """Left empty at the end of a row because a wide character did not fit."""
        wide = self._cell(column, row, "WIDE", "GhosttyCellWide")
        return bool(wide == lib.GHOSTTY_CELL_WIDE_SPACER_HEAD)

    def blank_background(self, column: int, row: int) -> int | Rgb | None:
        """The colour of a cell that has a background and no text."""
        tag = self._cell(column, row, "CONTENT_TAG", "GhosttyCellContentTag")
        if tag == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_PALETTE:
            return int(self._cell(column, row, "COLOR_PALETTE", "GhosttyColorPaletteIndex"))
        if tag == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_RGB:
            return _rgb(self._cell(column, row, "COLOR_RGB", "GhosttyColorRgb"))
        return None

    def format(
        self,
        start: tuple[int, int],
        end: tuple[int, int],
        *,
        plain: bool = False,
        unwrap: bool = True,
        extra: str = "",
    ) -> bytes:
        """The cells from `start` to `end`, both included, as (column, row); as escape sequences or
        plain text. `extra` names one piece of state to write beside them."""
        self._selection.start = self._at(*start)[0]
        self._selection.end = self._at(*end)[0]
        options = self._options
        options.emit = (
            lib.GHOSTTY_FORMATTER_FORMAT_PLAIN if plain else lib.GHOSTTY_FORMATTER_FORMAT_VT
        )
        options.unwrap, options.trim = unwrap, plain
        if extra:
            holder = options.extra if hasattr(options.extra, extra) else options.extra.screen
            setattr(holder, extra, True)
            try:
                return self._run(options)
            finally:
                setattr(holder, extra, False)
        return self._run(options)

    def _run(self, options: Any) -> bytes:
        formatter = ffi.new("GhosttyFormatter*")
        _check(
            lib.ghostty_formatter_terminal_new(ffi.NULL, formatter, self._handle, options[0]),
            "formatter",
        )
        data, length = ffi.new("uint8_t**"), ffi.new("size_t*")
        try:
            result = lib.ghostty_formatter_format_alloc(formatter[0], ffi.NULL, data, length)
            _check(result, "format")
            text = bytes(ffi.buffer(data[0], length[0]))
            lib.ghostty_free(ffi.NULL, data[0], length[0])
        finally:
            lib.ghostty_formatter_free(formatter[0])
        return text

    def extras(self, *names: str) -> dict[str, bytes]:
        """Pieces of state alone: what `format` writes before or after a cell when asked for it."""
        corner = (0, self.history)
        bare = len(self.format(corner, corner))
        found = {}
        for name in names:
            full = self.format(corner, corner, extra=name)
            found[name] = full[: len(full) - bare] if name in _WRITTEN_BEFORE else full[bare:]
        return found

    def compress(self) -> None:
        """Packs the scrollback, to a tenth or so. It unpacks by itself what is looked at."""
        result = ffi.new("GhosttyTerminalCompressionResult*")
        mode = lib.GHOSTTY_TERMINAL_COMPRESSION_MODE_FULL
        _check(lib.ghostty_terminal_compress(self._handle, mode, result), "compress")

    # -- whole terminals --------------------------------------------------------------------------

    def encode(self) -> bytes | None:
        """Everything, for `decode`; None where the library cannot: inside a very long sequence, or
        after a resize cut a wide character in two."""
        data, length = ffi.new("uint8_t**"), ffi.new("size_t*")
        result = lib.ghostty_snapshot_encode_alloc(self._handle, ffi.NULL, data, length)
        if result != lib.GHOSTTY_SUCCESS:
            return None
        blob = bytes(ffi.buffer(data[0], length[0]))
        lib.ghostty_free(ffi.NULL, data[0], length[0])
        return blob

    @classmethod
    def decode(cls, blob: bytes, scrollback: int) -> Terminal | None:
        return cls._decode(blob, lib.ghostty_snapshot_decoder_decode, scrollback)

    @classmethod
    def _decode(cls, blob: bytes, stage: Any, scrollback: int) -> Terminal | None:
        decoder = ffi.new("GhosttySnapshotDecoder*")
        buffer = ffi.from_buffer("uint8_t[]", blob)
        if lib.ghostty_snapshot_decoder_new_buf(ffi.NULL, decoder, buffer, len(blob)):
            return None
        handle = ffi.new("GhosttyTerminal*")
        try:
            # Keeps the begun sequence, so that the restored parser stands where this one stood.
            keep = ffi.new("bool*", True)
            key = lib.GHOSTTY_SNAPSHOT_DECODER_OPT_RETAIN_CONTINUATION
            _check(lib.ghostty_snapshot_decoder_set(decoder[0], key, keep), "decoder option")
            if stage(decoder[0], handle) != lib.GHOSTTY_SUCCESS:
                return None
        finally:
            lib.ghostty_snapshot_decoder_free(decoder[0])
        terminal = cls.__new__(cls)
        terminal._adopt(handle[0], scrollback)
        return terminal

    def clone(self) -> Terminal | None:
        blob = self.encode()
        return None if blob is None else Terminal.decode(blob, self.scrollback_limit)

    def clone_without_history(self) -> Terminal | None:
        """Screen, modes and saved cursors, in a fraction of a millisecond: the encoding begins with
        them, so it is stopped as soon as enough of it is there to be decoded."""
        limit = _ENCODE_FIRST_TRY
        while True:
            blob = self._encode_prefix(limit)
            ready = lib.ghostty_snapshot_decoder_ready
            terminal = self._decode(blob, ready, self.scrollback_limit) if blob else None
            if terminal is not None or len(blob) < limit:
                return terminal
            limit *= 4

    def _encode_prefix(self, limit: int) -> bytes:
        kept = bytearray()

        def write(_user: Any, data: Any, length: int) -> bool:
            kept.extend(ffi.buffer(data, length))
            return len(kept) < limit

        writer = ffi.new("GhosttyWriter*")
        callback = ffi.callback("GhosttyWriterFn", write)
        writer.write = callback
        lib.ghostty_snapshot_encode(self._handle, writer[0])
        return bytes(kept)
