"""Programs that once broke a law, as small as they could be made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.fuzz import laws
from tests.fuzz.laws import Case
from tests.fuzz.program import Block, Branch, Call, Choice, Key, Log, Program, Scan, While


@dataclasses.dataclass(frozen=True)
class Find:
    """``rows``: the values of each key, in order, when the program is spooled (or its gradient, ``of_gradient``)."""

    name: str
    law: Callable[[Case], None]
    program: Program
    rows: dict[str, list[float]]
    turn: int = 0
    of_gradient: bool = False


F0, F1 = Key("f", 0), Key("f", 1)
TWICE = While(Choice(False, 1), 0, Block((Log((F0,)),)))

FINDS: tuple[Find, ...] = (
    Find(
        "two marks side by side shared the counter of tap's interval",
        laws.taps,
        Program(Block((Log((F0,)), Log((F1,)))), lane_safe=True),
        {"f0/@0": [2.0], "f1/@0": [2.0]},
        turn=2,
    ),
    Find(
        "under grad of checkpoint, a loop-invariant mark left its scan",
        laws.gradients,
        Program(Block((Call("checkpoint", 0, Block((Scan("scan", 2, 0, Block((Log((F1,)),))),))),)), lane_safe=True),
        {"f1/@0": [2.0, 2.0]},
        of_gradient=True,
    ),
    Find(
        "under grad, a loop-invariant conditional lost its marks",
        laws.gradients,
        Program(
            Block(
                (
                    Scan(
                        "scan",
                        2,
                        0,
                        Block((Branch(Choice(False, 0), 0, (Block((Log((F0,)),)), Block((Log((F0,)),)))),)),
                    ),
                )
            ),
            lane_safe=True,
        ),
        {"f0/@0": [2.0, 2.0]},
        of_gradient=True,
    ),
    Find(
        "on JAX 0.12, marks in what a checkpoint with a policy leaves behind were a KeyError",
        laws.gradients,
        Program(
            Block((Call("checkpoint:everything_saveable", 0, Block((Scan("scan", 2, 0, Block((Log((F0,)),))),))),)),
            lane_safe=True,
        ),
        {"f0/@0": [2.0, 2.0]},
        of_gradient=True,
    ),
    Find(
        "spool(reduce=('append', 'sum')) gave the rows and no sum",
        laws.reductions,
        Program(Block((Scan("fori", 3, 0, Block((Log((Key("i", 0),), a=1),))),)), lane_safe=True),
        {"i0/@0": [0.0, 1.0, 2.0]},
        turn=2,
    ),
    *(
        Find(
            f"under grad, marks of passive {name} in a scan in a checkpoint were lost, moved or repeated",
            laws.gradients,
            Program(Block((Call("checkpoint", 0, Block((Scan("scan", 2, 0, Block((Call("passive", 0, body),))),))),))),
            {"f0/@0": [2.0] * 4},
            of_gradient=True,
        )
        for name, body in {
            "loops": Block((Scan("scan", 2, 0, Block((Log((F0,)),))),)),
            "loops in a gradient": Block((Call("grad", 0, Block((Scan("scan", 2, 0, Block((Log((F0,)),))),))),)),
            "while loops": Block((TWICE,)),
            "while loops in a checkpoint": Block((Call("checkpoint", 0, Block((TWICE,))),)),
        }.items()
    ),
    Find(
        "linearize ran a while loop, and its marks, twice",
        laws.spool_rows,
        Program(Block((Call("linearize", 0, Block((While(Choice(False, 0), 0, Block((Log((F0,)),))),))),))),
        {"f0/@0": [2.0] * 3},
    ),
    Find(
        "linearize ran a while loop twice whose tangents only its marks would have used",
        laws.spool_rows,
        Program(
            Block((Call("linearize", 0, Block((While(Choice(False, 1), 0, Block((Log((Key("cast", 0),), a=7),))),))),))
        ),
        {"cast0/@0": [2.0] * 3},
    ),
    Find(
        "under grad, several marks of a while loop in a checkpoint could not be tapped",
        laws.gradients,
        Program(Block((Call("checkpoint", 0, Block((Call("passive", 0, Block((Log((F0,)), TWICE))),))),))),
        {"f0/@0": [2.0] * 3},
        of_gradient=True,
    ),
    Find(
        "a tap with an interval in a vmap was expected to count the records of all lanes together",
        laws.unchanged,
        Program(Block((Call("vmap", 0, Block((Call("tap", 0, Block((Log((F0,)),)), (("interval", 2),)),))),))),
        {"f0/@1": [2.0] * 2},
    ),
    Find(
        "a number of Python in x64 mode was cut to 32 bits",
        laws.spool_rows,
        Program(Block((Call("x64", 0, Block((Log((Key("number", 1),)),))),))),
        {"number1/@0": [2.5]},
    ),
    Find(
        "a rule that calls its function on tangents made the host calls of an inner tap twice",
        laws.gradients,
        Program(Block((Call("custom_jvp", 0, Block(), (("form", "own"),)),))),
        {"f9/@0": [4.0]},
        turn=1,
        of_gradient=True,
    ),
    Find(
        "outside jit, a donated value that is also logged could not be passed",
        laws.eager_spool,
        Program(Block((Call("jit", 0, Block((Log((F0,)),)), (("jit", "donated"),)),))),
        {"f0/@0": [2.0]},
    ),
    Find(
        "wide values that a loop in a rule had packed were unpacked as narrow ones",
        laws.gradients,
        Program(
            Block(
                (
                    Call(
                        "custom_jvp",
                        0,
                        Block((Scan("scan", 2, 0, Block((Call("x64", 0, Block((Log((Key("number", 1), F0)),))),))),)),
                    ),
                )
            )
        ),
        {"number1/@0": [2.5, 2.5], "f0/@0": [4.0, 4.0]},
        turn=1,
        of_gradient=True,
    ),
    Find(
        "the mean of a loop in a checkpoint that saves everything could not be linearized on JAX 0.10",
        laws.forwards,
        Program(
            Block(
                (
                    Call(
                        "checkpoint:everything_saveable",
                        0,
                        Block((While(Choice(False, 0), 0, Block(), Log((Key("i", 1, (), "mean"),), a=6)),)),
                    ),
                )
            )
        ),
        {"i1/:mean@0": [3, 3, 3, 3]},
        turn=1,
    ),
)
