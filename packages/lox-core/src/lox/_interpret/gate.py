"""Host calls in branches and loops, under ``vmap``.

If a condition differs between the lanes of a ``vmap``, JAX runs both branches for all lanes, and runs a loop until the last
lane is done. Inside a tap, marks know the conditions around them (``Frame.alive``). But a whole tap, or ``logger.log``, can
itself be in a branch, and its host calls do not know the condition. So when JAX batches a conditional or a loop with host
calls, lox replaces it by one whose host calls also check the condition. A scan has no condition, but a condition in it can
look at all lanes at once (``answers``).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from lox._host.primitive import HostEffect, deliver_p
from lox._interpret import lanes
from lox._interpret.answers import asks_all_lanes, asks_all_lanes_inside
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.survey import Survey
from lox._interpret.table import RULES
from lox._jax import compat
from lox._types import Array


class Gate(Collector):
    """Lets host calls check whether a lane really runs this part of the program."""

    tracks_lanes = True

    def __init__(self) -> None:
        names = frozenset([deliver_p.name])
        super().__init__(Survey(lambda mark, key: False, also=names), keep=True)

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Any:
        if eqn.primitive is not deliver_p:
            return super()._step(eqn, invals, frame)
        params = eqn.params
        here = lanes.both(None if frame.alive is True else frame.alive, frame.lanes)
        if params["results"] or here is None:  # the program needs the results, even if no lane is alive
            return compat.bind_eqn(eqn, invals)
        first = int(params["has_token"])
        alive = lanes.both(here, invals[first] if params["has_alive"] else lanes.all_of(params["lanes"]))
        rest = invals[first + int(params["has_alive"]) :]
        return deliver_p.bind(*invals[:first], alive, *rest, **{**params, "has_alive": True, "masked": True})


class _Equation(NamedTuple):
    """The parts of an equation that a rule reads."""

    primitive: Any
    params: dict[str, Any]
    invars: tuple[Any, ...]


class _Inside(threading.local):
    """Whether the program that is batched now already has its gates."""

    gated = False

    @contextlib.contextmanager
    def gates(self) -> Iterator[None]:
        self.gated = True
        try:
            yield
        finally:
            self.gated = False


_inside = _Inside()


def gated(primitive: Any, batch: Callable[..., Any]) -> Callable[..., Any]:
    """The batching rule of a primitive, extended to equations that hold host calls."""

    def rule(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        eqn = _Equation(primitive, params, tuple(object() for _ in args))
        plainly = functools.partial(batch, axis_data, args, dims, **params)
        if compat.holds_effect(params, tuple(compat.our_effects)) and _has_lanes(eqn):
            plainly = functools.partial(_lanes_in_front, plainly, batch, axis_data, args, dims, params)
        if _inside.gated or not compat.holds_effect(params, HostEffect):
            return plainly()

        def run(*args: Array) -> Any:
            return RULES[primitive.name].run(Gate(), Frame(Context({})), eqn, list(args))

        # Not inside `gates()`: JAX caches what it batches here, and uses it again where all lanes take the same way.
        batched = _DIFFERING[primitive.name](params, dims, plainly)
        if batched is None:
            return plainly()
        out_dims = [0 if b else None for b in batched]
        with _inside.gates():
            return compat.vmap_again(run, axis_data, dims, out_dims)(*args), out_dims

    return rule


# For a primitive in which lanes differ in the branch they take or in the number of iterations: which results are batched.
# None if all lanes take the same way.


def _differing_cond(params: dict[str, Any], dims: Any, plainly: Callable[[], Any]) -> list[bool] | None:
    del plainly
    return None if dims[0] is None else [True] * len(params["branches"][0].out_avals)


def _differing_while(params: dict[str, Any], dims: Any, plainly: Callable[[], Any]) -> list[bool] | None:
    del dims
    batched = _batched(plainly)
    # If the condition is batched, all results are.
    return batched if all(batched) or asks_all_lanes(params["cond_jaxpr"]) else None


def _differing_scan(params: dict[str, Any], dims: Any, plainly: Callable[[], Any]) -> list[bool] | None:
    """Lanes differ if a condition in the body asks all lanes. Only here are the condition and what it decides in one place."""
    del dims
    return _batched(plainly) if asks_all_lanes_inside(params["jaxpr"]) else None


_DIFFERING = {"cond": _differing_cond, "while": _differing_while, "scan": _differing_scan}


def _batched(batch: Callable[[], Any]) -> list[bool]:
    """Which results are batched, without computing them."""
    return [dim is not None for dim in _dims(batch)]


def _dims(batch: Callable[[], Any]) -> list[int | None]:
    """Along which axes results are batched, without computing them."""
    found: list[int | None] = []

    def outs() -> Any:
        values, dims = batch()
        found[:] = dims
        return values

    jax.eval_shape(outs)
    return found


def _has_lanes(eqn: Any) -> bool:
    return eqn.primitive is jax.lax.while_p and bool(lanes.of_predicate(eqn.params["cond_jaxpr"]))


def _lanes_in_front(
    plainly: Callable[[], Any], batch: Callable[..., Any], axis_data: Any, args: Any, dims: Any, params: dict[str, Any]
) -> Any:
    """A loop whose predicate already has lanes, under one more ``vmap``. If the predicate is the same in all new lanes, JAX
    leaves it as it is and puts the new axis after those of the predicate. Marks and host calls have the new axis in front, so
    here the predicate gets it too."""
    wanted = _dims(plainly)
    if all(dim == 0 for dim in wanted):  # the predicate is batched
        return plainly()
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_predicate = [i < first or i >= last for i in range(len(args))]
    spread = [
        compat.move_to_front(axis_data, arg, dim) if moved else arg
        for arg, dim, moved in zip(args, dims, of_predicate, strict=True)
    ]
    new_dims = [0 if moved else dim for dim, moved in zip(dims, of_predicate, strict=True)]
    outs, _ = batch(axis_data, spread, new_dims, **params)
    # A value that is the same in all lanes stays one value, because code outside may rely on it.
    same = [dim is None for dim in wanted]
    return [out[0] if alike else out for out, alike in zip(outs, same, strict=True)], [
        None if alike else 0 for alike in same
    ]
