"""The gateway's page in a real browser, for somebody who signs in with a token."""

from __future__ import annotations

import re
from typing import Any

from browser_kit import Tab
from e2e.guests import NAMESPACE, Guests
from gateway_kit import ROOT, until


def signed_in(tab: Tab, guests: Guests, who: str, session: str) -> Tab:
    """The page of one session."""
    tab.open(f"{guests.url}/#/{NAMESPACE}/{session}")
    tab.says("h1", "Sign in")
    tab.page.fill("#token", guests[who].token)
    tab.page.click("form .primary")
    until(lambda: not tab.page.locator("#signin").is_visible(), "the sign-in to go")
    return tab


def cells(tab: Tab) -> list[Any]:
    """What its terminal shows, row by row, and its cursor: as `judge.mjs` tells of others."""
    judge = (ROOT / "tests/support/judge.mjs").read_text()
    functions = re.findall(r"^function (?:colour|attributes|line)\(.*?^}", judge, re.M | re.S)
    found: list[Any] = tab.page.evaluate(
        "() => {"
        + "\n".join(functions)
        + """
          const { cols, rows, buffer: { active } } = holdfast.terminal;
          const spare = active.getNullCell(), lines = [];
          for (let y = active.baseY; y < active.baseY + rows; y++)
            lines.push(line(active, y, cols, spare).cells);
          return [...lines, [active.cursorX, active.cursorY]];
        }"""
    )
    return found
