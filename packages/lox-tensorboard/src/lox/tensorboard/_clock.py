"""Wall times of events."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

_SMALLEST_STEP = 1e-6  # seconds; a 64-bit float resolves today's times down to about 2e-7


class Clock:
    """Wall times that always increase: the rows of a batch are spread over the time since the previous batch."""

    def __init__(self, after: float = 0.0) -> None:
        """
        Args:
          after: the last time of an earlier process. The system clock may have been set back since.
        """
        self._last = max(time.time(), after)

    def now(self) -> float:
        return float(self.rise(1)[0])

    def rise(self, rows: int) -> npt.NDArray[np.float64]:
        start = self._last
        self._last = max(time.time(), start + rows * _SMALLEST_STEP)
        return start + (self._last - start) * np.arange(1, rows + 1) / rows

    def follow(self, other: Clock) -> None:
        """Continues from another clock, if that one is later."""
        self._last = max(self._last, other._last)

    def take(self, times: npt.NDArray[np.float64]) -> bool:
        """Continues from the times of another clock. Returns False if they are not later than this clock."""
        if times[0] <= self._last:
            return False
        self._last = float(times[-1])
        return True
