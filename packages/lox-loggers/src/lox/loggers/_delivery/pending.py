"""How the user's thread deals with the background threads of a logger: it waits for them, and raises their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from lox.loggers._delivery.failures import is_telling
from lox.loggers._delivery.sink import Sink


def settle(sinks: Sequence[Sink], finish: Callable[[Sink], None]) -> None:
    """Waits for the device to deliver, then lets every sink finish, even if others have failed."""
    try:
        jax.effects_barrier()
    finally:
        stuck: list[Exception] = []
        for sink in sinks:
            try:
                finish(sink)
            except TimeoutError as error:
                stuck.append(error)
    if stuck:
        raise stuck[0] if len(stuck) == 1 else ExceptionGroup("several loggers are stuck", stuck)
    raise_failures(sinks)


def is_anything_wrong(sinks: Sequence[Sink]) -> bool:
    """Whether a call from Python may have to raise something. A plain loop, because every call of a training loop asks."""
    for sink in sinks:  # noqa: SIM110
        if sink.closed or sink.failures.pending is not None:
            return True
    return False


def raise_failures(sinks: Sequence[Sink]) -> None:
    """Raises what the background threads have kept for the next call from Python."""
    if is_telling():
        return
    errors = [
        error
        for sink in sinks
        if sink.failures.pending is not None and not sink.foreign and (error := sink.failures.take()) is not None
    ]
    if len(errors) > 1:
        raise BaseExceptionGroup(f"{len(errors)} loggers failed", errors)
    if errors:
        raise errors[0]
