"""What a sink knows about a run id: the open run with its writer, or why nothing is written."""

from __future__ import annotations

import dataclasses
import enum

from lox.loggers._delivery.resume import WrittenSteps
from lox.loggers._delivery.run import BatchWriter, LaneWriter, Run, Writer


class Nowhere(enum.Enum):
    """Why the records of a run id are not written."""

    OTHER_PROCESS = "another process writes this run"
    FAILED = "the run could not be opened"
    CLOSED = "the run is closed"


@dataclasses.dataclass
class OpenRun:
    run: Run
    writer: Writer
    written: WrittenSteps | None  # what a resumed run already has
    dirty: bool = False
    lane_writer: LaneWriter | None = None
    batch_writer: BatchWriter | None = None

    def __post_init__(self) -> None:
        if isinstance(self.writer, BatchWriter):
            self.batch_writer = self.writer
        if isinstance(self.writer, LaneWriter) and self.written is None:
            self.lane_writer = self.writer
