"""Programs with logs, each beside the one that a person would write without lox."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lox
from lox._host.delivery import Receiver

Array = Any
STEPS = 10_000


class Pair(NamedTuple):
    name: str
    by_hand: Callable[..., Any]
    with_lox: Callable[..., Any]
    args: tuple[Any, ...]


def matvec(x: Array, weights: Array) -> Array:
    return jnp.tanh(weights @ x)


def scalars(number: int, dtype: Any = jnp.float32) -> Callable[[Array], list[Array]]:
    return lambda x: [((i + 1) * x).sum().astype(dtype) for i in range(number)]


def mixed(x: Array) -> list[Array]:
    """A few narrow values beside wide ones."""
    return [x.sum(), x[0] > 0, x.max(), x[1] > 0, x.min().astype(jnp.int8), x[2], x[3], x[4]]


def vectors(number: int, size: int) -> Callable[[Array], list[Array]]:
    return lambda x: [(i + 1) * x[..., :size] for i in range(number)]


def marked(values: Callable[[Array], list[Array]], where: Callable[[Array], Array] | None = None) -> Callable[..., Any]:
    """A scan that logs ``values`` of the carry at each step."""

    def f(x: Array, weights: Array) -> Array:
        def body(x: Array, i: Array) -> Any:
            x = matvec(x, weights)
            named = {f"v{i}": value for i, value in enumerate(values(x))}
            lox.log(named, where=None if where is None else where(x))
            return x, None

        return jax.lax.scan(body, x, None, length=STEPS)[0]

    return f


def marked_apart(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    """A scan that logs each of the values of the carry by a call of its own."""

    def f(x: Array, weights: Array) -> Array:
        def body(x: Array, i: Array) -> Any:
            x = matvec(x, weights)
            for number, value in enumerate(values(x)):
                lox.log({f"v{number}": value}, step=i)
            return x, None

        return jax.lax.scan(body, x, jnp.arange(STEPS))[0]

    return f


def marked_around(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    """A scan that logs ``values`` of the carry at each step, between two other marks."""

    def f(x: Array, weights: Array) -> Array:
        lox.log({"begin": x[0]})
        x = marked(values)(x, weights)
        lox.log({"end": x[0]})
        return x

    return f


def with_run_ids(fun: Callable[..., Any], lanes: int = 0) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function tapped as a logger taps it, which sends along which run a record is for; its lanes have one each."""

    def f(run: Array, *args: Array) -> Any:
        return lox.tap(fun, Receiver(lambda delivery: None, run))(*args)

    return (jax.vmap(f, in_axes=(0, 0, None)), (np.zeros(lanes, np.int32), *LANES)) if lanes else (f, (RUN, *MATVEC))


def logged(values: Callable[[Array], list[Array]], where: Any = None, **options: Any) -> Callable[..., Any]:
    return lox.spool(marked(values, where), **options)


# --- a transformer -----------------------------------------------------------------------------------------------------

WIDTH, HEADS, LAYERS, TOKENS, BATCH = 256, 4, 4, 128, 8


def parameters() -> dict[str, np.ndarray]:
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    return {name: np.zeros((LAYERS, *shape), np.float32) for name, shape in shapes.items()}


def layer(x: Array, p: dict[str, Array], log: bool) -> Array:
    q, k, v = jnp.split((x @ p["qkv"]).reshape(*x.shape[:-1], HEADS, -1), 3, axis=-1)
    attention = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 8.0)
    x = x + jnp.einsum("bhts,bshd->bthd", attention, v).reshape(x.shape) @ p["out"]
    hidden = jax.nn.gelu(x @ p["up"])
    if log:
        lox.log({"rms": jnp.sqrt(jnp.mean(x**2)), "active": jnp.mean(hidden > 0)})
    return x + hidden @ p["down"]


def training_step(log: bool, remat: bool) -> Callable[..., Any]:
    def loss(params: Any, x: Array) -> Array:
        def body(x: Array, p: Any) -> Any:
            return layer(x, p, log), None

        return jnp.mean(jax.lax.scan(jax.checkpoint(body) if remat else body, x, params)[0] ** 2)

    def step(params: Any, x: Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        if log:
            lox.log({"loss": value})
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return step


def training_step_by_hand(remat: bool) -> Callable[..., Any]:
    """The same step with its logs threaded through by hand."""

    def loss(params: Any, x: Array) -> Any:
        def body(x: Array, p: Any) -> Any:
            q, k, v = jnp.split((x @ p["qkv"]).reshape(*x.shape[:-1], HEADS, -1), 3, axis=-1)
            attention = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 8.0)
            x = x + jnp.einsum("bhts,bshd->bthd", attention, v).reshape(x.shape) @ p["out"]
            hidden = jax.nn.gelu(x @ p["up"])
            return x + hidden @ p["down"], (jnp.sqrt(jnp.mean(x**2)), jnp.mean(hidden > 0))

        out, logs = jax.lax.scan(jax.checkpoint(body) if remat else body, x, params)
        return jnp.mean(out**2), logs

    def step(params: Any, x: Array) -> Any:
        (value, logs), grads = jax.value_and_grad(loss, has_aux=True)(params, x)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value, logs

    return step


# --- by hand ---------------------------------------------------------------------------------------------------------


def scan_outputs(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    def f(x: Array, weights: Array) -> Any:
        def body(x: Array, _: Any) -> Any:
            x = matvec(x, weights)
            return x, values(x)

        return jax.lax.scan(body, x, None, length=STEPS)

    return f


def running_means(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    """Compensated, as any mean over many records has to be."""

    def f(x: Array, weights: Array) -> Any:
        def body(carry: Any, _: Any) -> Any:
            x, means, lost, count = carry
            x, count = matvec(x, weights), count + 1
            steps = [(v.astype(m.dtype) - m) / count - c for v, m, c in zip(values(x), means, lost, strict=True)]
            after = [m + s for m, s in zip(means, steps, strict=True)]
            lost = [(a - m) - s for a, m, s in zip(after, means, steps, strict=True)]
            return (x, after, lost, count), None

        zeros = [jnp.zeros(v.shape) for v in jax.eval_shape(values, x)]
        (x, means, _, _), _ = jax.lax.scan(body, (x, zeros, zeros, jnp.float32(0)), None, length=STEPS)
        return x, means

    return f


def running_maxima(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    def f(x: Array, weights: Array) -> Any:
        def body(carry: Any, _: Any) -> Any:
            x, largest = carry
            x = matvec(x, weights)
            return (x, list(map(jnp.maximum, largest, values(x)))), None

        least = [jnp.full(v.shape, -jnp.inf, v.dtype) for v in jax.eval_shape(values, x)]
        return jax.lax.scan(body, (x, least), None, length=STEPS)[0]

    return f


def every_tenth(values: Callable[[Array], list[Array]]) -> Callable[..., Any]:
    """Every tenth record has a row. The others are written to a row that is cut off."""
    rows = STEPS // 10

    def f(x: Array, weights: Array) -> Any:
        def body(i: Array, carry: Any) -> Any:
            x, buffers = carry
            x = matvec(x, weights)
            place = jnp.where(i % 10 == 0, i // 10, rows)
            return x, [write_row(buffer, v, place) for buffer, v in zip(buffers, values(x), strict=True)]

        empty = [jnp.zeros((rows + 1, *v.shape), v.dtype) for v in jax.eval_shape(values, x)]
        x, buffers = jax.lax.fori_loop(0, STEPS, body, (x, empty))
        return x, [buffer[:rows] for buffer in buffers]

    return f


def write_row(buffer: Array, value: Array, place: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(buffer, value, place, 0)


def ring(values: Callable[[Array], list[Array]], rows: int, keep: Callable[[Array], Array]) -> Callable[..., Any]:
    """The last ``rows`` of the records for which ``keep(carry)``, oldest first."""

    def f(x: Array, weights: Array) -> Any:
        def body(carry: Any, _: Any) -> Any:
            x, buffers, count = carry
            x = matvec(x, weights)
            kept = keep(x)
            place = jnp.where(kept, count % rows, rows)
            buffers = [write_row(buffer, v, place) for buffer, v in zip(buffers, values(x), strict=True)]
            return (x, buffers, count + kept), None

        empty = [jnp.zeros((rows + 1, *v.shape), v.dtype) for v in jax.eval_shape(values, x)]
        (x, buffers, count), _ = jax.lax.scan(body, (x, empty, jnp.int32(0)), None, length=STEPS)
        order = (jnp.where(count > rows, count % rows, 0) + jnp.arange(rows)) % rows
        return x, [buffer[order] for buffer in buffers], count

    return f


def positive(x: Array) -> Array:
    return x.ravel()[0] > 0


SCALAR = (np.float32(0),)
RUN = np.int32(7)
MATVEC = (np.zeros(64, np.float32), np.zeros((64, 64), np.float32))
MATMUL = (np.zeros((512, 512), np.float32), np.zeros((512, 512), np.float32))
LANES = (np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32))
TRAINING = (parameters(), np.zeros((BATCH, TOKENS, WIDTH), np.float32))


def in_lanes(fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(fun, in_axes=(0, None))


def in_every_way(
    name: str, values: Callable[[Array], list[Array]], args: Any = MATVEC, lanes: bool = False
) -> list[Pair]:
    """Programs that log these values: all of them, their means, and the last thousand of those that are kept."""
    vmap = in_lanes if lanes else lambda fun: fun
    ways = {
        "": (scan_outputs(values), logged(values)),
        ", mean": (running_means(values), logged(values, reduce="mean")),
        ", where and capacity": (ring(values, 1000, positive), logged(values, where=positive, capacity=1000)),
        ", interval": (every_tenth(values), logged(values, interval=10)),
    }
    return [Pair(name + way, vmap(by_hand), vmap(with_lox), args) for way, (by_hand, with_lox) in ways.items()]


def pairs() -> list[Pair]:
    eight = scalars(8)
    steps = ((remat, ", remat" if remat else "") for remat in (False, True))
    return [
        *in_every_way("1 scalar", scalars(1)),
        *in_every_way("8 scalars", eight),
        Pair("8 scalars, where", ring(eight, STEPS, positive), logged(eight, where=positive), MATVEC),
        Pair("8 scalars, max", running_maxima(eight), logged(eight, reduce="max"), MATVEC),
        *in_every_way("64 scalars", scalars(64)),
        *in_every_way("1 vector of 64", vectors(1, 64)),
        *in_every_way("8 vectors of 16", vectors(8, 16)),
        Pair("8 vectors of 16, max", running_maxima(vectors(8, 16)), logged(vectors(8, 16), reduce="max"), MATVEC),
        *in_every_way("8 bfloat16", scalars(8, jnp.bfloat16)),
        *in_every_way("8 int8", scalars(8, jnp.int8)),
        *in_every_way("8 bool", scalars(8, jnp.bool_)),
        *in_every_way("8 of mixed widths", mixed),
        *in_every_way("8 scalars, matmul of 512 x 512", eight, MATMUL),
        *in_every_way("8 scalars, 64 lanes", eight, LANES, lanes=True),
        *(
            Pair(
                f"transformer step{way}", training_step_by_hand(remat), lox.spool(training_step(True, remat)), TRAINING
            )
            for remat, way in steps
        ),
    ]


def scalar_code(number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A loop of a trivial step that returns so many scalars, by hand and with lox."""

    def loop(log: bool) -> Callable[..., Any]:
        def f(x: Array) -> Any:
            def body(x: Array, _: Any) -> Any:
                x = jnp.sin(x)
                values = [x * (i + 1) for i in range(number)]
                if log:
                    lox.log({f"v{i}": value for i, value in enumerate(values)})
                return x, None if log else values

            return jax.lax.scan(body, x, None, length=STEPS)

        return f

    return loop(False), lox.spool(loop(True))


def split_vectors() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A loop that returns two vectors at each step, by hand and with lox, for arguments that are split by rows."""

    def loop(log: bool) -> Callable[..., Any]:
        def f(x: Array, weights: Array) -> Any:
            def body(x: Array, _: Any) -> Any:
                y = matvec(x, weights)
                if log:
                    lox.log({"y": y, "z": 2 * y})
                return y, None if log else (y, 2 * y)

            return jax.lax.scan(body, x, None, length=100)

        return f

    return loop(False), lox.spool(loop(True))


def shard_mapped(devices: Any, log: bool) -> Callable[..., Any]:
    """A scan whose step runs on each of four devices, and returns or logs two values of each."""
    mesh, split, whole = Mesh(np.array(devices[:4]), ("d",)), PartitionSpec("d"), PartitionSpec()

    def step(x: Array, weights: Array) -> Any:
        x = matvec(x, weights)
        if log:
            lox.log({"sum": x.sum(), "max": x.max()})
            return x, None
        return x, (x.sum()[None], x.max()[None])

    def f(x: Array, weights: Array) -> Any:
        mapped = jax.shard_map(step, mesh=mesh, in_specs=(split, whole), out_specs=(split, None if log else split))
        return jax.lax.scan(lambda x, _: mapped(x, weights), x, None, length=STEPS)

    return f


def shard_mapped_means(devices: Any) -> Callable[..., Any]:
    """The means of these values by hand, compensated."""
    mesh, split, whole = Mesh(np.array(devices[:4]), ("d",)), PartitionSpec("d"), PartitionSpec()

    def step(x: Array, weights: Array, means: Any, lost: Any, count: Array) -> Any:
        x = matvec(x, weights)
        values = [x.sum()[None], x.max()[None]]
        steps = [(v - m) / count - c for v, m, c in zip(values, means, lost, strict=True)]
        after = [m + s for m, s in zip(means, steps, strict=True)]
        return x, after, [(a - m) - s for a, m, s in zip(after, means, steps, strict=True)]

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(split, whole, split, split, whole), out_specs=(split,) * 3)

    def f(x: Array, weights: Array) -> Any:
        def body(carry: Any, _: Any) -> Any:
            (x, means, lost), count = carry
            return (mapped(x, weights, means, lost, count + 1), count + 1), None

        zeros = [jax.lax.with_sharding_constraint(jnp.zeros(4), NamedSharding(mesh, split))] * 2
        return jax.lax.scan(body, ((x, zeros, zeros), jnp.float32(0)), None, length=STEPS)[0]

    return f


def looped_on_each(devices: Any) -> Callable[..., Any]:
    """The same with the scan on each device."""

    def loop(x: Array, weights: Array) -> Array:
        def step(x: Array, _: Any) -> Any:
            x = matvec(x, weights)
            lox.log({"sum": x.sum(), "max": x.max()})
            return x, None

        return jax.lax.scan(step, x, None, length=STEPS)[0]

    return on_each(devices, loop)


def on_each(devices: Any, fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a vector and weights, on each of four devices."""
    mesh, split, whole = Mesh(np.array(devices[:4]), ("d",)), PartitionSpec("d"), PartitionSpec()
    return jax.shard_map(fun, mesh=mesh, in_specs=(split, whole), out_specs=split)


SHARD_MAPPED = (np.zeros(256, np.float32), np.zeros((64, 64), np.float32))
# How these are spread over four devices.
ON_DEVICES = {"number": 4, "specs": [PartitionSpec("d"), PartitionSpec()]}


def pair_on_devices(devices: Any) -> Pair:
    by_hand, marked = (shard_mapped(devices, log) for log in (False, True))
    return Pair("2 scalars, scan of shard_map on 4 devices", by_hand, lox.spool(marked), SHARD_MAPPED)


class Tapped(NamedTuple):
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    places: int = 1  # how many places of the program send records


TAPPED = {
    "1 scalar": Tapped(marked(scalars(1)), MATVEC),
    **{f"{number} scalars": Tapped(marked(scalars(number)), MATVEC) for number in (8, 64)},
    **{
        f"8 {np.dtype(dtype).name}": Tapped(marked(scalars(8, dtype)), MATVEC)
        for dtype in (jnp.bfloat16, jnp.int8, jnp.bool_)
    },
    "8 of mixed widths": Tapped(marked(mixed), MATVEC),
    "8 vectors of 16": Tapped(marked(vectors(8, 16)), MATVEC),
    "8 scalars, where": Tapped(marked(scalars(8), positive), MATVEC),
    "8 marks": Tapped(marked_apart(scalars(8)), MATVEC),
    "matmul of 512 x 512": Tapped(marked(scalars(8)), MATMUL),
    "64 lanes": Tapped(in_lanes(marked(scalars(8))), LANES),
    "before, in and after a loop": Tapped(marked_around(scalars(8)), MATVEC, 3),
    "transformer step": Tapped(training_step(True, False), TRAINING, 2),
    "transformer step, remat": Tapped(training_step(True, True), TRAINING, 2),
}


def tapped_by(logger: Any, fun: Callable[..., Any]) -> Callable[..., Any]:
    """As a function of the logger's state, which says which run the records are for."""
    return lambda state, *args: logger.tap(fun, state)(*args)


# --- marks that nobody looks at --------------------------------------------------------------------------------------


def unmarked(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same program, with calls of lox.log that do nothing."""

    @functools.wraps(fun)
    def f(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lox, "log", lambda *args, **kwargs: None)
            return fun(*args)

    return f


def branching(x: Array, weights: Array) -> Array:
    """A loop of unknown length with a branch in it, both with marks."""

    def log(x: Array) -> Array:
        lox.log({"positive": x.sum()})
        return x

    def body(x: Array) -> Array:
        x = jax.lax.cond(positive(x), log, jnp.negative, matvec(x, weights))
        lox.log({"sum": x.sum()})
        return x

    return jax.lax.while_loop(lambda x: x.sum() < 1.0, body, x)


# Programs of several places. Each is tapped where it is, and `wrap` puts it into lanes or onto devices.
SEVERAL_PLACES: dict[str, Any] = {
    "lanes that branch": (in_lanes, branching, LANES, 2),
    "lanes around a loop": (in_lanes, marked_around(scalars(8)), LANES, 3),
}

UNTOUCHED = {
    "branches": (branching, MATVEC),
    "scan": (marked(scalars(8)), MATVEC),
    "gradient": (jax.grad(lambda x, w: marked(scalars(8))(x, w).sum()), MATVEC),
    "lanes": (in_lanes(marked(scalars(8))), LANES),
    "transformer": (training_step(True, False), TRAINING),
    "transformer, remat": (training_step(True, True), TRAINING),
}


# --- loops that cannot know beforehand which records are due, or when a batch is full ----------------------------------


def _sometimes(x: Array) -> None:
    lox.log({"sum": x.sum()}, where=x[0] > 0)


def _twice(x: Array) -> None:
    lox.log({"x": x.sum()})
    lox.log({"x": x.max()})
    _sometimes(x)


def _in_a_loop(length: int) -> Callable[[Array], None]:
    def run(x: Array) -> None:
        lox.log({"x": x.sum()})
        jax.lax.map(lambda i: lox.log({"inner": x[i]}, step=i), jnp.arange(length))

    return run


def _scan_of(log: Callable[[Array], None]) -> Callable[..., Any]:
    def f(x: Array, weights: Array) -> Array:
        def body(x: Array, _: Any) -> Any:
            x = matvec(x, weights)
            log(x)
            return x, None

        return jax.lax.scan(body, x, None, length=STEPS)[0]

    return f


def _logged_before(x: Array, weights: Array) -> Array:
    x = matvec(x, weights)
    _sometimes(x)
    return _scan_of(_sometimes)(x, weights)


UNSTEADY = {
    "where": _scan_of(_sometimes),
    "twice": _scan_of(_twice),
    "a short loop in a loop": _scan_of(_in_a_loop(7)),
    "a long loop in a loop": _scan_of(_in_a_loop(1000)),
    "logged before": _logged_before,
}
