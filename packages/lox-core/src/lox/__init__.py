"""lox: log from anywhere inside JAX code."""

from pkgutil import extend_path as _extend_path
from typing import TYPE_CHECKING as _TYPE_CHECKING

# Sibling distributions (lox-loggers, lox-tensorboard, lox-wandb) put their packages next to this one.
__path__ = _extend_path(__path__, __name__)

from lox import _namespace

_namespace.check_jax_version()
_namespace.install_sibling_hints()

with _namespace.explain_jax_failures():
    from lox._errors import LoxError as LoxError
    from lox._inside.nonfinite import find_nonfinite as find_nonfinite
    from lox._inside.probe import probe as probe
    from lox._log import log as log
    from lox._log import log_grad as log_grad
    from lox._logdict import logdict as logdict
    from lox._nolog import nolog as nolog
    from lox._reduce import Reducer as Reducer
    from lox._spool import spool as spool
    from lox._tap import tap as tap

if _TYPE_CHECKING:
    __version__: str
else:  # hidden from type checkers: to them a module with __getattr__ has every attribute

    def __getattr__(name: str) -> str:
        if name == "__version__":  # looked up on demand, because it reads a file
            return _namespace.own_version()
        raise _namespace.missing_attribute(name)
