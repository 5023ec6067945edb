"""Has anything become slower? The ratios of a quick run against stored ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import Figure
from benchmarks.report import number

STORED = Path(__file__).with_name("stored.json")
# A ratio may be this much worse than the stored one before the run fails: what is left of the noise after medians and
# turns, and what another processor changes.
MARGIN = 0.30
# Ratios below this are compared as if they were this: 0.004 against 0.003 of a callback is no regression.
FLOOR = 0.05


def store(figures: Iterable[Figure]) -> None:
    """Remember these ratios. A figure that was too noisy keeps the one it had."""
    known = stored()
    known.update({figure.name: round(figure.ratio, 4) for figure in figures if not figure.noisy})
    STORED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def stored() -> dict[str, float]:
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def regressions(figures: Iterable[Figure]) -> list[str]:
    """What is worse than it was, by more than the margin and by more than its own uncertainty."""
    before = stored()
    found = []
    for figure in figures:
        was = before.get(figure.name)
        if was is not None and is_worse(figure, was):
            found.append(f"{figure.name}: {number(figure.ratio)}, was {number(was)}")
    return found


def is_worse(figure: Figure, was: float) -> bool:
    if figure.at_least:
        return figure.high < was / (1 + MARGIN)
    return figure.low > max(was, FLOOR) * (1 + MARGIN)
