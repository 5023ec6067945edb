"""An attempt to write several tables, in which some keys may fail while others succeed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import lox
from lox.loggers import _files
from lox.loggers._delivery.tables import count_records


class Attempt:
    """Continues with the other keys when one fails, and raises the first failure at the end.

    If a failure may pass, its rows are kept, and so are all later rows of the same key: the records of a key are written in
    order or not at all.
    """

    def __init__(self, tables: Sequence[lox.logdict]) -> None:
        self.tables = tables
        self._first: Exception | None = None
        self._kept: dict[int, set[str]] = {}  # the keys of each table
        self._lost: dict[int, set[str]] = {}

    @contextlib.contextmanager
    def of(self, parts: Sequence[tuple[str, int]]) -> Iterator[bool]:
        """Wraps the work on some parts, each a key and the number of a table. Yields False if the work must not be tried now."""
        waiting = {key for keys in self._kept.values() for key in keys}
        gone = {(key, number) for number, keys in self._lost.items() for key in keys}
        if any(key in waiting for key, _ in parts):
            _add(self._kept, parts)
            yield False
            return
        try:
            yield not any(part in gone for part in parts)
        except Exception as error:
            self._first = self._first or error
            _add(self._kept if _files.may_pass(error) else self._lost, parts)

    def kept(self) -> list[lox.logdict]:
        """The parts of the tables to write later."""
        return list(self._left(self._kept))

    def raise_first(self, is_last: bool) -> None:
        """Raises the first failure, if there was one.

        Args:
          is_last: whether there will be no other attempt.
        """
        if self._first is None:
            return
        if is_last:
            _add(self._lost, [(key, number) for number, keys in self._kept.items() for key in keys])
        self._first.lost_records = sum(map(count_records, self._left(self._lost)))  # type: ignore[attr-defined]
        raise self._first

    def _left(self, parts: dict[int, set[str]]) -> Iterable[lox.logdict]:
        return (self.tables[number].filter(parts[number].__contains__) for number in sorted(parts))


def _add(parts: dict[int, set[str]], more: Iterable[tuple[str, int]]) -> None:
    for key, number in more:
        parts.setdefault(number, set()).add(key)
