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

from gateway_kit import ARTIFACTS, until

_FLAGS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 800}}
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

    def live(self) -> Tab:
        until(
            lambda: self.page.evaluate("globalThis.holdfast?.link()") == "connected", "a live page"
        )
        return self

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def text(self) -> str:
        """The whole buffer of the terminal, scrollback included; wrapped lines are joined."""
        found = self.page.evaluate(
            """() => {
              const { active } = holdfast.terminal.buffer;
              const lines = [];
              for (let y = 0; y < active.length; y++) {
                const line = active.getLine(y);
                const text = line.translateToString(true);
                if (line.isWrapped) lines[lines.length - 1] += text; else lines.push(text);
              }
              return lines.join('\\n');
            }"""
        )
        return str(found)

    def shows(self, text: str, seconds: float = 40.0) -> None:
        try:
            until(lambda: text in self.text(), repr(text), seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; the terminal shows:\n{self.text()[-2000:]}") from None

    def says(self, selector: str, text: str, seconds: float = 40.0) -> None:
        """An element of the page, not of the terminal, comes to hold this text."""
        # The browser itself waits for it: to ask again and again keeps two processes busy.
        place = self.page.locator(selector).filter(has_text=re.compile(re.escape(text)))
        place.filter(visible=True).first.wait_for(timeout=seconds * 1000)

    @property
    def size(self) -> tuple[int, int]:
        columns, rows = self.page.evaluate("[holdfast.terminal.cols, holdfast.terminal.rows]")
        return columns, rows

    def picture(self, name: str) -> None:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"page-{name}.png")
