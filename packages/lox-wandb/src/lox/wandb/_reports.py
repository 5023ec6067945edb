"""Messages of wandb's own process about uploads. It writes them to a log in the run's folder, where nobody would see them."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lox.wandb._errors import BACKEND

log = logging.getLogger("lox.wandb")

_TELLING = ("WARN", "ERROR")


class Reports:
    """Reports problems with the uploads of a logger through `logging`: each problem once, for all of its runs."""

    def __init__(self, told: set[str], name: str, file: str) -> None:
        self._told = told
        self._name = name
        self._file = Path(file)
        self._read = 0

    def tell(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._new_lines():
                self._tell(line)

    def _new_lines(self) -> Iterator[bytes]:
        if self._file.stat().st_size <= self._read:
            return
        with self._file.open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield line

    def _tell(self, line: bytes) -> None:
        try:
            report: dict[str, Any] = dict(json.loads(line))
        except (TypeError, ValueError):
            return
        if report.get("level") not in _TELLING and "error" not in report:
            return
        message = ": ".join(str(report[part]) for part in ("msg", "error") if part in report)
        kind = re.sub(r"\d+", "", message)  # messages that differ only in ports, seconds or attempts are the same
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s: wandb reports about the run %r: %s", BACKEND, self._name, message)
