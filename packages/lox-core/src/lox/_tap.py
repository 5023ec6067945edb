"""``lox.tap``: each record calls the host while the program runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from lox._calls import explain_options
from lox._errors import LogTypeError
from lox._host.delivery import Receiver
from lox._host.targets import PerRecord
from lox._interpret import program
from lox._interpret.collect import Context, Frame
from lox._interpret.plan import check_positive
from lox._interpret.selection import Selection
from lox._interpret.survey import Survey
from lox._logdict import logdict
from lox._tapping.kept import TapOptions
from lox._tapping.tapper import Tapper
from lox._types import Array

P = ParamSpec("P")
R = TypeVar("R")


@explain_options(
    {
        "reduce": "it delivers the records themselves. Fold them in the callback, with logs.reduce(...) and batch=n, or use "
        "lox.spool(f, reduce=...).",
        "capacity": "it delivers records while the function runs, so there is nothing to bound. Leave it out.",
        "keep_logs": "it always leaves the marks in the program. Leave it out.",
    }
)
def tap(
    fun: Callable[P, R],
    callback: Callable[[logdict], Any] | Receiver | None = None,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    prefix: str = "",
    interval: int | None = None,
    batch: int | None = None,
    ordered: bool = False,
) -> Callable[P, R]:
    """Transform ``fun`` into a function that also calls ``callback(logs)`` for its records, while it runs.

    Args:
      fun: the function whose ``lox.log`` calls are streamed, jitted or not.
      callback: gets a logdict of numpy values; by default, prints it. It must not call JAX: that can deadlock.
      argnames: only these keys; patterns such as ``"train/*"`` work.
      tags: only records that have at least one of these tags.
      prefix: put before every key.
      interval: deliver records 0, n, 2n, ... of each key; the others cost no host call.
      batch: collect up to n records of a call of ``lox.log`` on the device and deliver them stacked, the rest at the end. Each
        call has its own batch, so rare records can wait until the program ends; tap those without ``batch``.
      ordered: let JAX guarantee the order. This does not work under ``vmap`` or on several devices.

    The records have arrived when ``jax.effects_barrier()`` returns.

    >>> def f(x):
    ...     lox.log({"x": x})
    ...     return x + 1.0
    >>> y = lox.tap(f, lambda logs: print("got", logs))(jnp.float32(1.0))
    got {'x': 1.0}
    """
    every = check_positive("interval", interval)
    options = TapOptions(
        Selection.of(argnames, tags),
        prefix,
        None if every == 1 else every,
        check_positive("batch", batch),
        bool(ordered),
    )
    receiver = callback if isinstance(callback, Receiver) else Receiver(PerRecord(_check_callback(callback)))
    operands, operand_tree = jax.tree.flatten(receiver.operands)
    operands = [jnp.asarray(operand) for operand in operands]
    label = ("tap", options, receiver.handle, operand_tree)
    interpreter = functools.partial(_interpreter, options, receiver, operand_tree)
    return program.transform(fun, label, interpreter, lambda out, _: out, operands)


def _check_callback(callback: Any) -> Callable[[logdict], Any]:
    if callback is None:
        return print
    if not callable(callback):
        hint = f". To select keys, write argnames={callback!r}" if isinstance(callback, str) else ""
        raise LogTypeError(
            f"lox.tap: callback must be callable, got {callback!r} of type {type(callback).__name__}{hint}"
        )
    return callback


def _interpreter(
    options: TapOptions, receiver: Receiver, operand_tree: Any, traced: program.Traced
) -> Callable[[list[Array], list[Array]], Any]:
    survey = Survey(options.selection)
    usages = survey(traced.jaxpr).usages
    options.selection.warn_of_unknown_names(usages, traced.jaxpr)
    if receiver.check is not None:
        axes = {axis for usage in usages.values() for use in usage.uses for axis in use.mark.axes}
        receiver.check([options.prefix + key for key in usages], sorted(axes))
    tapper = Tapper(survey, options, receiver.handle, traced)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        frame = Frame(Context(tapper.init(), env=operand_tree.unflatten(operands)), nested=False)
        tapper.begin(frame)
        outs = tapper.run(traced.jaxpr, arrays, frame)
        tapper.flush(frame)
        return outs, ()

    return interpret
