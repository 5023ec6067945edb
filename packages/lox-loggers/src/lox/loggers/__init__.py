"""Where logs go: the `Logger` base, the registry of backends, and the everyday ones."""

from lox.loggers._errors import DuplicateLoggerError as DuplicateLoggerError
from lox.loggers._errors import LoggerClosedError as LoggerClosedError
from lox.loggers._errors import LoggerLoadError as LoggerLoadError
from lox.loggers._errors import LoggerNotFoundError as LoggerNotFoundError
from lox.loggers._errors import LoggerOptionError as LoggerOptionError
from lox.loggers._errors import LoggerStateError as LoggerStateError
from lox.loggers._errors import LoggerWarning as LoggerWarning
from lox.loggers._errors import RecordError as RecordError
from lox.loggers._errors import RunExistsError as RunExistsError
from lox.loggers._errors import RunFormatError as RunFormatError
from lox.loggers._logger import Logger as Logger
from lox.loggers._run import LoggerState as LoggerState
from lox.loggers._run import Run as Run
from lox.loggers._run import Writer as Writer
