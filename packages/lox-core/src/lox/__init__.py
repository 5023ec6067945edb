"""lox: log from anywhere inside JAX code."""

from pkgutil import extend_path

# Sibling distributions (lox-loggers, lox-tensorboard, lox-wandb) put their packages beside this one.
__path__ = extend_path(__path__, __name__)

from lox._namespace import check_jax_version, explain_jax_failures, install_sibling_hints

check_jax_version()
install_sibling_hints()

with explain_jax_failures():
    from lox._errors import LoxError as LoxError
    from lox._log import log as log
    from lox._log import log_grad as log_grad
    from lox._logdict import logdict as logdict
    from lox._nolog import nolog as nolog
    from lox._reduce import Reducer as Reducer
    from lox._spool import spool as spool
    from lox._tap import tap as tap
