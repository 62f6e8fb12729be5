"""Benchmarks: holdfast, its peers and the bare terminal, in one run. See docs/benchmarks.md."""
