"""Wall times of events."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

_SMALLEST_STEP = 1e-6  # seconds; a float of 64 bits tells times of today apart down to about 2e-7


class Clock:
    """Wall times that always rise: the rows of a batch are spread over the time since the batch before."""

    def __init__(self, after: float = 0.0) -> None:
        """after: where an earlier process stopped. The clock may have been set back since."""
        self._last = max(time.time(), after)

    def now(self) -> float:
        return float(self.rise(1)[0])

    def rise(self, rows: int) -> npt.NDArray[np.float64]:
        start = self._last
        self._last = max(time.time(), start + rows * _SMALLEST_STEP)
        return start + (self._last - start) * np.arange(1, rows + 1) / rows

    def follow(self, other: Clock) -> None:
        """Rises from where another clock is, if that is later."""
        self._last = max(self._last, other._last)

    def take(self, times: npt.NDArray[np.float64]) -> bool:
        """Goes on from the times of another clock. False if they would not rise from here."""
        if times[0] <= self._last:
            return False
        self._last = float(times[-1])
        return True
