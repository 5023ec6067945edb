"""``python -m benchmarks all`` or ``quick``; see ``--help``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

TOPICS = (
    "untouched",
    "spooling",
    "reducing",
    "tapping",
    "lanes",
    "devices",
    "dispatch",
    "transforming",
    "inside",
    "peers",
    "backends",
    "loggers",
    "job",
)
RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What lox costs, as ratios.")
    parser.add_argument("which", choices=("all", "quick", "plot"), help="plot: write the page of the docs again")
    parser.add_argument("--topic", action="append", choices=TOPICS, help="only these topics; may be given again")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: steadier on a busy machine")
    parser.add_argument("--json", type=Path, default=RESULTS, help="all: where the figures are kept, topic by topic")
    parser.add_argument("--store", action="store_true", help="quick: make these the ratios to compare with")
    options = parser.parse_args()
    if options.which == "plot":
        return _plot(options.json)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    from benchmarks import guard, harness, report

    harness.clock = harness.CLOCKS[options.clock]
    quick, host = options.which == "quick", report.machine()
    print(report.describe(host, options.clock))
    figures: list[harness.Figure] = []
    start = time.perf_counter()
    for topic in options.topic or TOPICS:
        report.print_heading(topic)
        for figure in importlib.import_module(f"benchmarks.topics.{topic}").figures(quick):
            report.print_figure(figure)
            figures.append(figure)
        if not quick:
            report.keep(options.json, figures, host, options.clock)
    report.print_summary(figures)
    print(f"{time.perf_counter() - start:.0f} s")
    if not quick:
        return _plot(options.json)
    if options.store:
        guard.store(figures)
        return 0
    worse = guard.regressions(figures)
    for line in worse:
        print(f"REGRESSION (more than {guard.MARGIN:.0%} worse than stored): {line}")
    return 1 if worse else 0


def _plot(results: Path) -> int:
    from benchmarks import docs, report

    docs.write(*report.from_json(results.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
