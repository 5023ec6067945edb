"""The ids of runs: what a state holds, and by which its records find their run.

A state is an array, so it goes into checkpoints with the rest of the training. In a later process it must not lead to a run
that just happens to be opened in the same place of a count. So an id follows from the name of the run, and from which
logger of the process it is, counted in the order in which they are made. It is the same in every process of a program, so
programs that contain it are found in JAX's compilation cache, and are the same on all hosts.
"""

from __future__ import annotations

import hashlib
import itertools
import threading

_loggers = itertools.count()
_given: set[int] = set()  # in this process, by all loggers: a state of another one is always noticed
_lock = threading.RLock()


class RunIds:
    """The ids of the runs of one logger."""

    def __init__(self) -> None:
        self._logger = next(_loggers)

    def of(self, name: str) -> int:
        """A new id, for a run of that name: an int32. The second run of a name has another one than the first."""
        with _lock:
            attempt = 0
            while True:
                text = f"{self._logger} {attempt} {name}"
                digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
                run_id = int.from_bytes(digest, "big") >> 1
                if run_id not in _given:
                    _given.add(run_id)
                    return run_id
                attempt += 1
