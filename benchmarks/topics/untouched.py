"""A mark that no transformation looks at: is the program really the one without it?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure, exact, in_turns

Pair = tuple[Callable[..., Any], Callable[..., Any], Any]


def tiny(marks: int) -> Pair:
    def with_marks(x: Any) -> Any:
        for i in range(marks):
            lox.log({f"k{i}": x * i, "norm": jnp.sum(x * x)}, step=i)
        return x + 1.0

    return with_marks, lambda x: x + 1.0, jnp.float32(1.0)


def in_scan(marks: int) -> Pair:
    step, x = programs.matvec(marks)
    return programs.marked(step, 1000, with_step=True), programs.plain(step, 1000), x


def differentiated(marks: int) -> Pair:
    def loss(x: Any) -> Any:
        y = jnp.tanh(x)
        for i in range(marks):
            lox.log({f"k{i}": y * i})
        return jnp.sum(y**2)

    return jax.grad(loss), jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)), jnp.ones(8)


CASES = {
    "tiny function, 1 mark": lambda: tiny(1),
    "tiny function, 8 marks": lambda: tiny(8),
    "scan of matvec, 8 scalars": lambda: in_scan(8),
    "gradient, 8 marks": lambda: differentiated(8),
}


def figures(quick: bool) -> Iterator[Figure]:
    for case, make in CASES.items():
        yield from _call(case, make())
    if not quick:
        for case, make in CASES.items():
            yield from _compile(case, make)


def _call(case: str, pair: Pair) -> Iterator[Figure]:
    marked, bare, x = pair
    jitted, reference = jax.jit(marked), jax.jit(bare)
    samples = in_turns({"marks": lambda: jitted(x), "no marks": lambda: reference(x)}, seconds=1.5)
    yield samples.figure("marks", "no marks", topic="untouched", case=f"{case}, run", target=1.03)
    same = _optimised(marked, x) == _optimised(bare, x)
    yield exact(
        0 if same else 1,
        1,
        topic="untouched",
        what="optimised HLO differs",
        against="no marks",
        case=case,
        target=0,
        unit="yes",
    )


def _compile(case: str, make: Callable[[], Pair]) -> Iterator[Figure]:
    def compiling(which: int) -> Callable[[], Any]:
        def compile_once() -> None:
            pair = make()
            jax.jit(pair[which]).lower(pair[2]).compile()

        return compile_once

    samples = in_turns({"marks": compiling(0), "no marks": compiling(1)}, seconds=1.5, wait=False)
    yield samples.figure("marks", "no marks", topic="untouched", case=f"{case}, trace and compile")


def _optimised(fun: Callable[..., Any], x: Any) -> str:
    """The optimised program, without names and places in the source."""
    text = jax.jit(fun).lower(x).compile().as_text()
    body = text[text.index("\n", text.index("StackFrames") if "StackFrames" in text else 0) :]
    body = re.sub(r", metadata=\{[^}]*\}", "", body)
    body = re.sub(r"\n\d+ [\"{].*", "", body)
    numbers: dict[str, str] = {}
    return re.sub(r"%[\w.\-]+", lambda m: numbers.setdefault(m.group(), f"%{len(numbers)}"), body)
