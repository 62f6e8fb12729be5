"""Draws docs/images/freeze.svg from what `make curve` measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build/bench/curve.json"
PICTURE = ROOT / "docs/images/freeze.svg"
LINES = {
    "memory_copy": ("memory, copied", "#d1495b", "o"),
    "memory_postcopy": ("memory, following (post-copy)", "#00798c", "s"),
    "layer": ("files of the writable layer", "#edae49", "^"),
}


def points(report: dict[str, object], line: str) -> list[tuple[int, float]]:
    name = re.compile(rf"curve_{line}_(\d+)mb_seconds")
    found = ((name.fullmatch(key), value) for key, value in report.items())
    return sorted((int(key[1]), float(str(value))) for key, value in found if key)


def main() -> None:
    report = json.loads(REPORT.read_text())
    plt.rcParams |= {"svg.hashsalt": "holdfast", "font.size": 10, "svg.fonttype": "none"}
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for line, (label, colour, marker) in LINES.items():
        sizes, seconds = zip(*points(report, line), strict=True)
        axes.plot(sizes, seconds, marker=marker, color=colour, label=label, linewidth=2)
        axes.annotate(f"{seconds[-1]:.2f} s", (sizes[-1], seconds[-1]), xytext=(6, 4),
                      textcoords="offset points", color=colour)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("size, MB")
    axes.set_ylabel("seconds of standing still")
    axes.set_xlim(0.8, 9000)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(f"A move, as the session sees it ({report['machine']})", fontsize=10)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
