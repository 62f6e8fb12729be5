"""Takes the README's picture of the page: a real session in a real browser."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from browser_kit import Tab, browser  # noqa: E402
from gateway_kit import Place, place, until  # noqa: E402
from sidecar_kit import Client  # noqa: E402

PICTURE = ROOT / "docs/images/page.png"
PROMPT = r"\[\e[36m\]~/hold\[\e[0m\] \[\e[1;32m\]$\[\e[0m\] "
SCENE = [
    "ls --color=always -C",
    "make OUT=build && ls -sh build",
    "python3 -m http.server 8123 >/dev/null 2>&1 &",
    "python3 -c \"input('deploy to which node? ')\"",
]


def play(tab: Tab, here: Place) -> None:
    for line in SCENE:
        until(lambda: here.get("/api/v1/sessions/build/state").json["activity"] == "prompt", "bash")
        time.sleep(0.5)
        tab.type(line + "\n")
    time.sleep(2)


def main() -> None:
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    with place() as here, browser() as chrome:
        folder = here.session("build", "bash", "--norc", columns=120, rows=34)
        here.start()
        here.sidecar("build")
        context = chrome.new_context(
            viewport={"width": 1240, "height": 470}, device_scale_factor=2, color_scheme="dark"
        )
        tab = Tab(context).open(here.link("build")).live()
        tab.page.click("#panel-open")
        tab.says("#panel-processes", "bash")
        tab.page.click("#terminal")
        with Client(folder / "sidecar.sock") as watching:
            watching.attach(mode="view", modality="cli")
            with tempfile.TemporaryDirectory() as work:
                shutil.copytree(ROOT / "init", f"{work}/hold")
                tab.type(f"cd {work}/hold; PS1='{PROMPT}'; clear\n")
                play(tab, here)
                tab.says(".processes", "deploy")
            tab.page.screenshot(path=str(PICTURE))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
