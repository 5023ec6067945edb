"""Scripts that tests run in a process of their own: ``python -m tests.core.seam.in_process NAME ARGUMENTS``.

Each prints one line of JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.core.seam import tables

ROOT = pathlib.Path(__file__).parents[3]


def run(name: str, *arguments: str) -> Any:
    """What a script of this file prints, in a fresh process."""
    command = [sys.executable, "-m", "tests.core.seam.in_process", name, *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def loaded_by_lox() -> Any:
    """The modules of JAX that are loaded with lox."""
    import lox.loggers  # noqa: F401

    return tables.modules()


def changed_places(*loaded: str) -> Any:
    """What is different in JAX, in these modules too, after lox was imported, then its loggers, and after it was used."""
    for name in loaded:
        importlib.import_module(name)
    tables.load_all()
    modules = tables.modules()  # one that is loaded later is new, and no change
    before = tables.snapshot(modules)
    import lox

    imported = tables.snapshot(modules)
    import lox.loggers

    with_loggers = tables.snapshot(modules)
    _use(lox)
    return {
        "import lox": tables.differences(before, imported),
        "import lox.loggers": tables.differences(imported, with_loggers),
        "use": tables.differences(with_loggers, tables.snapshot(modules)),
    }


def _use(lox: Any) -> None:
    def f(x: Any) -> Any:
        lox.log({"x": x})
        return jnp.sin(x)

    lox.spool(jax.grad(f))(1.0)
    jax.vmap(lox.tap(f, lambda logs: None))(jnp.ones(2))
    jax.effects_barrier()


def without_a_place() -> Any:
    """For each place that lox changes: what it says where JAX has none. Without marks, with marks, and once more."""
    import lox
    from lox._jax import backports

    functions = (lambda x: x + 1, _marked(lox), _marked(lox))
    found = {}
    for port in backports.BACKPORTS:
        if port.is_needed():
            put_back = _remove(port.place)
            before = tables.snapshot()
            said = [_said(lox, fun) for fun in functions]
            found[port.name] = {"said": said, "changed": tables.differences(before, tables.snapshot())[2]}
            put_back()
    return found


def _marked(lox: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        lox.log({"x": x})
        return x

    return f


def _said(lox: Any, fun: Callable[[Any], Any]) -> Any:
    try:
        return float(lox.spool(fun)(1.0)[0])
    except lox.LoxError as error:
        return f"{type(error).__name__}: {error}"


def _remove(place: Any) -> Callable[[], None]:
    original = place.find()
    if hasattr(place, "table"):
        del place.table.find()[place.primitive.find()]
    else:
        owner, name = place._owner()
        delattr(owner, name)
    return lambda: place.replace(original)


def witnesses_without() -> Any:
    """For each backport, what its witness finds with it and without it, and what it should."""
    from lox._jax import backports
    from tests.core.seam.witnesses import WITNESSES

    needed = [port for port in backports.BACKPORTS if port.is_needed()]
    originals = {port.name: port.place.find() for port in needed}
    backports.install()
    found = {}
    for port in needed:
        changed = port.place.find()
        with_it, expected = WITNESSES[port.name]()
        port.place.replace(originals[port.name])
        jax.clear_caches()
        without_it, _ = WITNESSES[port.name]()
        port.place.replace(changed)
        jax.clear_caches()
        found[port.name] = {"expected": expected, "with": with_it, "without": without_it}
    return found


def first_mark_in_a_rule() -> Any:
    """How many records there are where the first mark of a process is in a derivative rule in a checkpoint."""
    from tests.core.seam.witnesses import WITNESSES

    return WITNESSES["rules in checkpoint"]()


def scan3() -> Any:
    """Results of scans with jax_scan3, as it is and with what is missing; None is an error."""
    from tests.core.seam.scan3 import finish_scan3

    jax.config.update("jax_scan3", True)
    x = jnp.arange(3.0)

    def results() -> dict[str, Any]:
        total = jax.jit(lambda x: jax.lax.scan(lambda c, v: (c + v, None), 0.0, x)[0])(x)
        sums = jax.lax.scan(lambda c, v: (c + v, c + v), 0.0, x, reverse=True)[1]
        try:
            empty = jax.lax.scan(lambda c, v: (c + v, c), 0.0, x[:0])[1].tolist()
        except IndexError:
            empty = None
        return {"jit": float(total), "reverse": sums.tolist(), "length 0": empty}

    as_it_is = results()
    finish_scan3()
    jax.clear_caches()
    return as_it_is, results()


class _Logged(dict[str, Any]):
    """What a program gets from ``lox.log`` where there is no lox."""

    def __init__(self, data: Any, **steps: Any) -> None:
        super().__init__(data)
        for axis, step in steps.items():
            setattr(self, axis, dict.fromkeys(data, step))


def programs(lox_is: str) -> Any:
    """The programs of the corpus, and some random ones, without their marks, as JAX sees them. For each change it is every
    third."""
    jax.config.update("jax_disable_most_optimizations", True)
    absent = types.ModuleType("lox")
    absent.log = _Logged  # type: ignore[attr-defined]
    absent.log_grad = lambda x, name, **options: x  # type: ignore[attr-defined]
    sys.modules["lox"] = absent
    from tests.corpus import LANES, PROGRAMS

    some = [*PROGRAMS, *_random_programs(RANDOM)]
    del sys.modules["lox"]
    if lox_is != "absent":
        import lox

        assert lox.__file__
        if lox_is == "used":
            _use(lox)
            for name in ("scan", "custom_vjp_in_a_scan", "scan_of_a_checkpoint", "cond"):
                _use_on_something_like_it(lox, name)
    return {program.name: _prints(program, jnp.asarray(LANES)) for program in some[:: every()]}


def every() -> int:
    """Every how many programs are looked at; at night all of them."""
    return int(os.environ.get("LOX_TEST_EVERY") or 3)


RANDOM = 30


@dataclasses.dataclass(frozen=True)
class _Random:
    name: str
    fun: Callable[[Any], Any]
    differentiable: bool


def _random_programs(number: int) -> list[_Random]:
    """Programs of the fuzzer in which lox does nothing but log."""
    from tests.fuzz.build import build
    from tests.fuzz.generate import from_seed

    drawn = ((seed, from_seed(seed)) for seed in itertools.count())
    plain = ((seed, program) for seed, program in drawn if not program.has("spool", "tap", "nolog"))

    def as_function(program: Any) -> Callable[[Any], Any]:
        return lambda x: build(program)(x[0], x[:2], jnp.int32(3))["y"]

    return [
        _Random(f"seed {seed}", as_function(program), program.reversible)
        for seed, program in itertools.islice(plain, number)
    ]


def _use_on_something_like_it(lox: Any, name: str) -> None:
    def loop(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            lox.log({name: c, "constant": 1.0})
            return jax.lax.cond(c > 0, jnp.sin, jnp.cos, c), None

        return jax.lax.scan(jax.checkpoint(body), x, None, length=2)[0]

    lox.spool(jax.grad(loop))(1.0)
    jax.grad(lox.tap(loop, lambda logs: None))(1.0)
    jax.effects_barrier()


def _prints(program: Any, lanes: Any) -> list[Any]:
    """The jaxpr, the lowered program and the result, mapped and, where that works, differentiated: its values, its type, and
    how often it calls the host. Called directly, the type of the result."""
    fun, argument = jax.vmap(jax.grad(program.fun) if program.differentiable else program.fun), lanes
    jaxpr = re.sub(r"0x[0-9a-f]+", "0x", str(jax.make_jaxpr(fun)(argument)))
    lowered = jax.jit(fun).lower(argument)
    leaves = jax.tree.leaves(lowered.compile()(argument))
    text = lowered.as_text()
    return [
        *map(_hash, (jaxpr, text, repr([leaf.tolist() for leaf in leaves]))),
        [_type(leaf) for leaf in leaves],
        text.count("callback"),
        [_type(leaf) for leaf in jax.tree.leaves(program.fun(argument[0]))],
    ]


def _type(leaf: Any) -> str:
    """All that later code can tell apart, but for the values."""
    return f"{jax.typeof(leaf)} weak={leaf.weak_type} {leaf.sharding} committed={leaf.committed}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_SCRIPTS = (loaded_by_lox, changed_places, without_a_place, witnesses_without, first_mark_in_a_rule, scan3, programs)
SCRIPTS = {script.__name__: script for script in _SCRIPTS}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(SCRIPTS[name](*arguments)))  # type: ignore[operator]
