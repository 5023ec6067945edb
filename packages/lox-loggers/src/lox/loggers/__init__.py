"""Where logs go: the base class `Logger`, the registry of backends, and the common backends.

`create("save", path="runs")` creates a logger by name; `available()` lists the installed names. The class of every installed
backend is also an attribute: `lox.loggers.SaveLogger("runs")`. `dir` lists only those of lox-loggers, so it imports no others.
"""

from typing import TYPE_CHECKING, Any

from lox.loggers._backends.display.program_bars import progress as progress
from lox.loggers._delivery.locks import RunLock as RunLock
from lox.loggers._delivery.logger import Logger as Logger
from lox.loggers._delivery.run import BatchWriter as BatchWriter
from lox.loggers._delivery.run import LaneWriter as LaneWriter
from lox.loggers._delivery.run import LoggerState as LoggerState
from lox.loggers._delivery.run import Run as Run
from lox.loggers._delivery.run import Writer as Writer
from lox.loggers._delivery.static import Config as Config
from lox.loggers._errors import DuplicateLoggerError as DuplicateLoggerError
from lox.loggers._errors import LoggerClosedError as LoggerClosedError
from lox.loggers._errors import LoggerLoadError as LoggerLoadError
from lox.loggers._errors import LoggerNotFoundError as LoggerNotFoundError
from lox.loggers._errors import LoggerOptionError as LoggerOptionError
from lox.loggers._errors import LoggerStateError as LoggerStateError
from lox.loggers._errors import LoggerWarning as LoggerWarning
from lox.loggers._errors import ReaderError as ReaderError
from lox.loggers._errors import RecordError as RecordError
from lox.loggers._errors import RunExistsError as RunExistsError
from lox.loggers._errors import RunFormatError as RunFormatError
from lox.loggers._errors import UnreadableRunsError as UnreadableRunsError
from lox.loggers._histogram import Histogram as Histogram
from lox.loggers._readers.load import load as load
from lox.loggers._readers.reader import Reader as Reader
from lox.loggers._readers.reader import Recording as Recording
from lox.loggers._readers.reader import StoredRun as StoredRun
from lox.loggers._readers.runs import Runs as Runs
from lox.loggers._registry import Backend as Backend
from lox.loggers._registry import available as available
from lox.loggers._registry import create as create
from lox.loggers._registry import get as get

if TYPE_CHECKING:  # at run time these come from the registry, like those of other packages
    from lox.loggers._backends.display.console import ConsoleLogger as ConsoleLogger
    from lox.loggers._backends.display.progress import ProgressLogger as ProgressLogger
    from lox.loggers._backends.memory import MemoryLogger as MemoryLogger
    from lox.loggers._backends.multi import MultiLogger as MultiLogger
    from lox.loggers._backends.save.logger import SaveLogger as SaveLogger
    from lox.loggers._backends.text.csv import CsvLogger as CsvLogger
    from lox.loggers._backends.text.jsonl import JsonlLogger as JsonlLogger


def __getattr__(name: str) -> Any:
    from lox.loggers._registry import by_class_name, class_names

    # Any other name is a typo or a lookup such as __path__, and not worth reading metadata for.
    found = by_class_name(name) if name[:1].isupper() else None
    if found is None:
        raise AttributeError(
            f"module 'lox.loggers' has no attribute {name!r}"
            + (f"; the installed loggers are {', '.join(class_names())}" if name.endswith("Logger") else "")
        )
    return found


def __dir__() -> list[str]:
    from lox.loggers._registry import class_names

    return sorted({*globals(), *class_names("lox-loggers")})
