"""The ids of runs. A state holds an id, and its records find their run by it.

A state is an array, so it can end up in a checkpoint. In a later process it must not lead to a wrong run, so ids are not
simply counted: an id is computed from the name of the run and the number of its logger in the process. It is the same in
every process of a program, so programs that contain it are the same on all hosts, and JAX finds them in its compilation
cache.
"""

from __future__ import annotations

import hashlib
import itertools
import threading

_loggers = itertools.count()
_given: set[int] = set()  # the ids of all loggers in this process, so that a state of another logger is always noticed
_lock = threading.RLock()


class RunIds:
    """The ids of the runs of one logger."""

    def __init__(self) -> None:
        self._logger = next(_loggers)
        self._attempts: dict[str, int] = {}  # for each name, how many ids were tried, so that none is tried twice

    def of(self, name: str) -> int:
        """A new id, an int32, for a run of that name. Two runs of the same name have different ids."""
        with _lock:
            while True:
                attempt = self._attempts[name] = self._attempts.get(name, -1) + 1
                text = f"{self._logger} {attempt} {name}"
                digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
                run_id = int.from_bytes(digest, "big") >> 1
                if run_id not in _given:
                    _given.add(run_id)
                    return run_id
