"""A real browser for the page's tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from gateway_kit import ARTIFACTS, PATIENCE_SECONDS

_FLAGS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CALM: Final[dict[str, Any]] = {"color_scheme": "dark", "reduced_motion": "reduce"}  # less to draw
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 800}}
# The whole buffer of the terminal, scrollback included; wrapped lines are joined.
_TEXT: Final = """() => {
  const active = globalThis.holdfast?.terminal.buffer.active;
  const lines = [];
  for (let y = 0; y < (active?.length ?? 0); y++) {
    const line = active.getLine(y);
    const text = line.translateToString(true);
    if (line.isWrapped) lines[lines.length - 1] += text; else lines.push(text);
  }
  return lines.join('\\n');
}"""
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}


def chromium() -> str | None:
    usual = Path("/usr/bin/chromium")
    if usual.exists():
        return str(usual)
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def browser(*more: str) -> Iterator[Browser]:
    """`more`: flags."""
    # As root, Chromium cannot use its sandbox; the pages it opens here are our own.
    flags = [*_FLAGS, *more, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            yield started
        finally:
            started.close()


class Tab:
    """The page as a person sees it, and what its terminal holds."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def open(self, link: str) -> Tab:
        self.page.goto(link)
        return self

    def comes(
        self, condition: str, given: object = None, seconds: float = PATIENCE_SECONDS
    ) -> bool:
        """Whether a function of the page comes to be true of what is given."""
        # The page itself waits for it: to ask again and again keeps three processes busy.
        waits = f"""async ([given, seconds]) => {{
          const holds = {condition};
          const end = performance.now() + seconds * 1000;
          while (!holds(given)) {{
            if (performance.now() > end) return false;
            await new Promise((resolve) => setTimeout(resolve, 20));
          }}
          return true;
        }}"""
        return bool(self.page.evaluate(waits, [given, seconds]))

    def live(self) -> Tab:
        assert self.comes("() => globalThis.holdfast?.link() === 'connected'"), "no live page"
        return self

    def tap(self) -> None:
        """On the terminal, with a finger. The browser makes a click of it in its own time."""
        self.page.tap("#terminal")
        assert self.comes("() => document.activeElement?.closest('#terminal')"), "no focus"

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def text(self) -> str:
        return str(self.page.evaluate(_TEXT))

    def shows(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        found = self.comes(f"(text) => ({_TEXT})().includes(text)", text, seconds)
        assert found, f"{text!r} is not shown; the terminal shows:\n{self.text()[-2000:]}"

    def says(self, selector: str, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        """An element of the page, not of the terminal, comes to hold this text."""
        place = self.page.locator(selector).filter(has_text=re.compile(re.escape(text)))
        place.filter(visible=True).first.wait_for(timeout=seconds * 1000)

    @property
    def size(self) -> tuple[int, int]:
        columns, rows = self.page.evaluate("[holdfast.terminal.cols, holdfast.terminal.rows]")
        return columns, rows

    def picture(self, name: str) -> None:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"page-{name}.png")
