"""The page's files, read once and served from memory with the hash of their content as ETag.

The port, and with it the origin, changes between machines and sometimes between runs, so a browser
is told to ask each time; on loopback a 304 costs nothing and a new version is never missed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from holdfast_wire.errors import NotFound, Unavailable

WEB: Final = Path(__file__).parent / "web"
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}


def security_headers(host: str, origins: tuple[str, ...] = ()) -> dict[str, str]:
    """For every answer. Styles may be inline because xterm.js writes its own; scripts may not.
    `host` has been checked by then, or the answer is a refusal and loads nothing. `origins`: what
    the page may connect to beside us, to sign in."""
    # Some browsers do not count a WebSocket to the own host as 'self'. Whether it is secure is the
    # page's own affair: TLS may end before us.
    sockets = (f"ws://{host}", f"wss://{host}") if host.isascii() and ";" not in host else ()
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
        "font-src": "'self'",
        "manifest-src": "'self'",
        "connect-src": " ".join(["'self'", *sockets, *origins]),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    type: str
    etag: str


class Assets:
    def __init__(self, folder: Path = WEB) -> None:
        self._assets = {
            "/" + path.relative_to(folder).as_posix(): _load(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in _TYPES
        }

    @property
    def complete(self) -> bool:
        """Whether the terminal emulator was fetched; a bare checkout does not have it."""
        return "/vendor/xterm.mjs" in self._assets

    def answer(self, request: web.Request) -> web.Response:
        asset = self._assets.get("/index.html" if request.path == "/" else request.path)
        if asset is None:
            raise NotFound("there is nothing here", "the page is at /")
        if request.path == "/" and not self.complete:
            raise Unavailable(
                "the page's terminal emulator is not installed",
                "run 'npm ci && node vendor.mjs' in gateway/",
            )
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=asset.content, content_type=asset.type, charset="utf-8", headers=headers
        )


def _load(path: Path) -> _Asset:
    content = path.read_bytes()
    return _Asset(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
