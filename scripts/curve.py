"""Draws docs/images/freeze.svg from what `make curve` measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build/bench/curve.json"
PICTURE = ROOT / "docs/images/freeze.svg"
INK, QUIET = "#24292f", "#6e7781"
LINES = {
    "memory_copy": ("memory, copied", "#c0392b", "o"),
    "memory_postcopy": ("memory, following\n(post-copy)", "#00798c", "s"),
    "layer": ("files of the\nwritable layer", "#b7791f", "^"),
}
LINE_HEIGHT = 1.31  # of a label, as a factor on the axis
SIZES = (1, 10, 100, 1000, 4000)
SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


def points(report: dict[str, object], line: str) -> list[tuple[int, float]]:
    name = re.compile(rf"curve_{line}_(\d+)mb_seconds")
    found = ((name.fullmatch(key), value) for key, value in report.items())
    return sorted((int(key[1]), float(str(value))) for key, value in found if key)


def size(megabytes: float) -> str:
    return f"{megabytes / 1000:g} GB" if megabytes >= 1000 else f"{megabytes:g} MB"


def draw(axes: Axes, report: dict[str, object]) -> None:
    """Each line has its name and its last figure at the right; those that end in one place must not
    lie on each other."""
    free = 0.0
    for line in sorted(LINES, key=lambda one: points(report, one)[-1][1]):
        label, colour, marker = LINES[line]
        sizes, seconds = zip(*points(report, line), strict=True)
        axes.plot(sizes, seconds, marker=marker, color=colour, linewidth=2, markersize=6,
                  markeredgecolor="white", clip_on=False)  # fmt: skip
        text = f"{label}, {seconds[-1]:.2g} s"
        height = LINE_HEIGHT ** (text.count("\n") + 1)
        middle = max(seconds[-1], free * height**0.5)
        free = middle * height**0.5
        axes.annotate(text, (SIZES[-1], middle), xytext=(10, 0), textcoords="offset points",
                      color=colour, va="center", annotation_clip=False)  # fmt: skip


def dress(axes: Axes, machine: object) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(SIZES))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    axes.yaxis.set_major_locator(FixedLocator(SECONDS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlim(0.8, 5000)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET)
    axes.tick_params(colors=QUIET, length=0, pad=6)
    axes.grid(visible=True, axis="y", color="#d8dee4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title("How long a session stands still when it moves, by what moves with it",
                   loc="left", color=INK, fontsize=12, pad=30)  # fmt: skip
    axes.text(0, 1.05, f"median of three; both nodes on one machine: {machine}",
              transform=axes.transAxes, color=QUIET, fontsize=9)  # fmt: skip


def main() -> None:
    report = json.loads(REPORT.read_text())
    fonts = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Arial"]}
    plt.rcParams |= {"svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 10, **fonts}
    figure, axes = plt.subplots(figsize=(8.6, 4.6))
    draw(axes, report)
    low, high = axes.get_ylim()
    dress(axes, report["machine"])
    axes.set_ylim(max(0.1, low * 0.7), high * 1.1)
    figure.subplots_adjust(left=0.08, right=0.76, top=0.82, bottom=0.1)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
