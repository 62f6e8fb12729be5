"""Tries to refute the lease's rules: python -m tests.lease [--runs N] [--trace] [VARIANT...]

Fails if the shipped rules are refuted, or if a broken variant is not.
"""

from __future__ import annotations

import argparse
import sys

from .explore import Result, explore, shrink, tell
from .variants import ALL, Variant


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lease", description=__doc__)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(ALL))
    parser.add_argument("--runs", type=int, default=20_000, help="at most, for each variant")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--trace", action="store_true", help="tell the first counterexamples")
    parsed = parser.parse_args()
    unknown = set(parsed.variants) - set(ALL)
    if unknown:
        parser.error(f"no such variant: {', '.join(sorted(unknown))}")
    if parsed.runs < 1:
        parser.error("--runs must be at least 1")
    return parsed


def line(variant: Variant, result: Result, right: bool) -> str:
    outcome = "refuted" if result.finding else "holds"
    apart = f"{max(0.0, result.closest):.3f}" if result.closest < 1e9 else "-"
    return (
        f"{'ok' if right else 'WRONG':<6}{variant.name:<14}{outcome:<8}{result.runs:>9}"
        f"{result.simulated:>13.0f}{result.takeovers:>11}{result.live:>7}{apart:>9}"
        f"{result.runs / result.took:>8.0f}  {variant.says}"
    )


def main() -> int:
    options = arguments()
    print(
        f"{'':<6}{'variant':<14}{'':<8}{'runs':>9}{'simulated s':>13}{'takeovers':>11}{'live':>7}"
        f"{'apart s':>9}{'runs/s':>8}"
    )
    wrong = 0
    for variant in [ALL[name] for name in options.variants or ALL]:
        runs = max(1, round(options.runs * variant.share))
        result = explore(variant.rules, runs, options.seed)
        right = variant.holds == (result.finding is None)
        wrong += not right
        print(line(variant, result, right), flush=True)
        if result.finding and (options.trace or variant.holds):
            small = shrink(result.finding, variant.rules)
            print("\n".join(f"      {told}" for told in tell(small, variant.rules)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
