"""A contract suite for backends: subclass `LoggerContract`, define how to make the logger, and run pytest.

    from lox.loggers.testing import LoggerContract

    class TestMyLogger(LoggerContract):
        def make(self, folder, **options):
            return MyLogger(folder, **options)

        def read(self, folder, name):          # if the backend keeps what it is given
            return lox.logdict(...)            # the records of the run of that name

        def read_config(self, folder, name):   # if it keeps configs
            return {...}                       # what `run.plain_config` held

The options are those of `Logger` (`if_exists`, `on_error`, `queue_size`, ...); a backend has to take them all and pass
them on to `Logger.__init__`. Without `read` only the lifecycle is checked. If the backend overrides `Logger.exists`,
what `if_exists` promises is checked too.

If the backend has a reader, published under the entry-point group `lox.readers`, subclass `ReaderContract` and give the name
of the reader instead of `read`: what the logger wrote is then read back through `lox.loggers.load`.

    class TestMyLogger(ReaderContract):
        reader = "mine"

        def make(self, folder, **options):
            return MyLogger(folder, **options)

pytest is not installed with lox-loggers: `pip install 'lox-loggers[testing]'`.
"""

import sys

try:
    import pytest
except ImportError as error:
    raise ImportError("lox.loggers.testing needs pytest: pip install 'lox-loggers[testing]'") from error

# Register them before they are imported, so that pytest shows what a failing assertion compared.
for _name in ("base", "records", "runs", "reading"):
    if (_module := f"lox.loggers._contract.{_name}") not in sys.modules:
        pytest.register_assert_rewrite(_module)

from lox.loggers._contract.reading import ReaderContract as ReaderContract  # noqa: E402
from lox.loggers._contract.suite import LoggerContract as LoggerContract  # noqa: E402
