"""Random programs.

``Generator`` asks a ``random.Random`` for every decision: a seed makes a program reproducible, and hypothesis can stand
in for the random numbers, which gives shrinking.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from tests.fuzz.program import (
    BACKWARD,
    DTYPES,
    FORWARD,
    JIT_OPTIONS,
    TANGENT_FORMS,
    TRANSFORMATIONS,
    Arith,
    Block,
    Branch,
    Call,
    Choice,
    Counter,
    Key,
    Log,
    LogGrad,
    Program,
    Scan,
    Statement,
    Vector,
    While,
)

AXES = ((), (), ("step",), ("step", "episode"), ("time",))
REDUCTIONS: tuple[Any, ...] = (
    "mean",
    "sum",
    "max",
    "last",
    "first",
    "count",
    "std",
    ("mean", "max"),
    ("first", "last"),
)
# What the digest of an inner spool can be computed with exactly.
EXACT_REDUCTIONS: tuple[Any, ...] = ("sum", "last", "first", "count", ("sum", "last"))

# Constructs left out until lox (or JAX) handles them: name -> why.
EXCLUDED: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class Context:
    """What may stand at a place."""

    levels: int  # how deep blocks may still nest
    lanes: bool = False  # inside a vmap: conditions may not depend on data
    depth: int = 0  # vmaps around
    no_while: bool = False  # differentiated backwards
    no_vjp: bool = False  # differentiated forwards
    differentiations: int = 0
    no_rules: bool = False  # no marks of backward passes
    exact: bool = False  # inside a spool whose logs are digested
    no_explicit: bool = False  # such marks would leave a spool inside a vmap, where shapes differ
    transformed: bool = False  # inside a transformation of lox
    no_choices: bool = False  # in a loop whose counter differs between lanes: no branch, no where

    def inside(self, **changed: Any) -> Context:
        return dataclasses.replace(self, levels=self.levels - 1, **changed)


class Generator:
    def __init__(self, random: random.Random, lane_safe: bool) -> None:
        self.random = random
        self.lane_safe = lane_safe

    def small(self) -> int:
        return self.random.randrange(8)

    def chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == 0

    def choice(self, context: Context) -> Choice:
        data = not (self.lane_safe or context.lanes) and self.random.randrange(2) == 1
        return Choice(data, self.small())

    def limit(self, context: Context) -> Choice:
        """How long a while loop runs. Under a vmap outside the program, it may differ between lanes."""
        return Choice(not context.lanes and self.random.randrange(2) == 1, self.small())

    def block(self, context: Context, largest: int = 2) -> Block:
        return Block(tuple(self.statement(context) for _ in range(self.random.randint(1, largest))))

    def statement(self, context: Context) -> Statement:
        kinds = ["log"] * 5 + ["arith"] * 2 + ["vector", "counter"]
        if context.levels > 0:
            kinds += ["scan"] * 2 + ["call"] * 5
            kinds += [] if context.no_choices else ["branch"] * 2
            kinds += [] if context.no_while else ["while"]
        if not context.no_rules and context.differentiations <= 1:
            kinds += ["log_grad"]
        return getattr(self, self.random.choice(kinds))(context)

    def arith(self, context: Context) -> Statement:
        return Arith(self.random.choice(["add", "sub", "mul", "const"]), self.small(), self.small())

    def vector(self, context: Context) -> Statement:
        return Vector(self.random.choice(["stack", "scale", "total"]), self.small(), self.small())

    def counter(self, context: Context) -> Statement:
        return Counter(self.random.choice(["add", "const"]), self.small(), self.small())

    # --- marks ---------------------------------------------------------------------------------------------------

    def log(self, context: Context) -> Log:
        axes, reduce = self.random.choice(AXES), self.reduction(context)
        forms = ["f", "f", "v", "i", "tree", "cast", "number"]
        keys = [
            Key(self.random.choice(forms), self.random.randrange(2), axes, reduce)
            for _ in range(self.random.randint(1, 2))
        ]
        ordered = reduce is not None and "max" in reduce  # complex numbers are not
        return Log(
            keys=tuple(dict.fromkeys(keys)),
            a=self.small(),
            dtype=self.random.choice(DTYPES[:-1] if ordered else DTYPES),
            where=self.condition(context),
            tags=self.random.choice([(), (), ("train",), ("train", "eval")]),
            explicit=self.chance(12) and not context.no_explicit,
            prefix=self.random.choice(["", "", "", "p/"]),
            site=self.random.randrange(4),
        )

    def log_grad(self, context: Context) -> Statement:
        key = Key("f", self.random.randrange(5, 7), self.random.choice(AXES), self.reduction(context))
        return LogGrad(key, self.small(), self.condition(context))

    def condition(self, context: Context) -> Choice | None:
        return self.choice(context) if self.chance(6) and not context.no_choices else None

    def reduction(self, context: Context) -> Any:
        if not self.chance(5):
            return None
        return self.random.choice(EXACT_REDUCTIONS if context.exact else REDUCTIONS)

    # --- control flow --------------------------------------------------------------------------------------------

    def scan(self, context: Context) -> Statement:
        via = self.random.choice(["scan", "scan", "scan", "fori", "map"])
        length = self.random.choice([0, 1, 2, 2, 3, 3])
        return Scan(
            via,
            length,
            self.small(),
            self.block(context.inside()),
            reverse=via == "scan" and self.chance(3),
            unroll=2 if via == "scan" and length > 1 and self.chance(4) else 1,
        )

    def while_(self, context: Context) -> Statement:
        limit = self.limit(context)
        inner = context.inside(no_choices=context.no_choices or (self.lane_safe and limit.data))
        test = self.log(inner) if self.chance(4) else None
        return While(limit, self.small(), self.block(inner), test)

    def branch(self, context: Context) -> Statement:
        number = self.random.choice([2, 2, 3])
        bodies = [self.block(context.inside(), 2) for _ in range(number)]
        if self.chance(2):  # branches that agree in what they record
            bodies = [bodies[0]] * number
            bodies = [Block((*body.statements, self.arith(context))) for body in bodies]
        return Branch(self.choice(context), self.small(), tuple(bodies))

    # --- calls ---------------------------------------------------------------------------------------------------

    def call(self, context: Context) -> Statement:
        how = self.random.choice(
            [
                "jit",
                "checkpoint",
                "checkpoint:everything_saveable",
                "checkpoint:dots_saveable",
                "custom_jvp",
                "custom_vjp",
            ]
            + [
                "grad",
                "value_and_grad",
                "vjp",
                "jvp",
                "linearize",
                "vmap",
                "spool",
                "tap",
                "nolog",
                "passive",
                "x64",
                "jit",
                "checkpoint",
                "vmap",
            ]
        )
        if how == "custom_vjp" and context.no_vjp:
            how = "custom_jvp"
        if how in BACKWARD and context.differentiations > 1:
            how = "jit"
        return self.call_of(how, context)

    def call_of(self, how: str, context: Context) -> Call:
        inner, options = self.inside_call(how, context)
        body = self.block(inner)
        # By chance alone, transformations would hardly ever be inside each other.
        between = how == "vmap" and context.transformed
        if inner.levels > 0 and (between or (how in TRANSFORMATIONS and self.chance(2))):
            inner = dataclasses.replace(inner, transformed=True)
            nested = self.call_of(self.random.choice(TRANSFORMATIONS if between else (*TRANSFORMATIONS, "vmap")), inner)
            body = Block((nested, *body.statements[1:]))
        return Call(how, self.small(), body, tuple(options.items()))

    def inside_call(self, how: str, context: Context) -> tuple[Context, dict[str, Any]]:
        deeper = context.differentiations + 1
        if how in BACKWARD:
            return context.inside(no_while=True, differentiations=deeper), {}
        if how in FORWARD:
            no_while = context.no_while or (how == "linearize" and "while in linearize" in EXCLUDED)
            return context.inside(no_vjp=True, differentiations=deeper, no_rules=True, no_while=no_while), {}
        if how in ("custom_jvp", "custom_vjp"):
            marked = not context.no_rules and context.differentiations <= 1 and self.chance(2)
            rule = {"rule": Key("f", self.random.randrange(7, 9))} if marked else {}
            if how == "custom_jvp":
                # Tangents are recorded by derivatives forwards alone, which the oracle does not have.
                modelled = not context.no_rules and not context.no_vjp and context.differentiations <= 1
                forms = TANGENT_FORMS if modelled else TANGENT_FORMS[:3]
                rule |= {"form": self.random.choice(forms)}
            return context.inside(no_rules=True), rule
        if how == "jit":
            return context.inside(), {"jit": self.random.choice(JIT_OPTIONS)} if self.chance(2) else {}
        if how == "passive":
            return context.inside(no_rules=True, no_while=False, no_vjp=False, differentiations=0), {}
        if how == "vmap":
            return context.inside(lanes=True, depth=context.depth + 1), {}
        if how == "spool":
            # A spool inside a vmap knows the lanes: there, conditions may differ between them.
            inner = context.inside(no_rules=True, exact=True, lanes=False, depth=0, no_choices=False)
            keeps = self.spool_options(context)
            return dataclasses.replace(inner, no_explicit=context.no_explicit or context.lanes), keeps
        if how in ("tap", "nolog"):
            options = self.random.choice([{}, {}, {"batch": 2}, {"interval": 2}]) if how == "tap" else {}
            return context.inside(no_rules=True), options
        return context.inside(), {}

    def spool_options(self, context: Context) -> dict[str, Any]:
        # What is recorded in the body may be dynamic: one of the two makes every program work.
        how = (
            {"reduce": self.random.choice(EXACT_REDUCTIONS)}
            if self.chance(2)
            else {"capacity": self.random.randint(1, 3)}
        )
        if self.chance(3):
            how["interval"] = 2
        if not (context.lanes or context.no_explicit) and self.chance(3):
            how["keep_logs"] = True
        return how


setattr(Generator, "while", Generator.while_)


# A program with more statements is not made: one in eight would be, and those took a third of the time.
MOST_STATEMENTS = 12


def generate(random: random.Random, largest: int = 3) -> Program:
    while True:
        lane_safe = random.randrange(2) == 1
        levels = random.choice([1, 2, 2, 3, 3])
        body = Generator(random, lane_safe).block(Context(levels=levels), largest)
        program = Program(body, lane_safe)
        if len(list(program.statements())) <= MOST_STATEMENTS:
            return program


def from_seed(seed: int) -> Program:
    return generate(random.Random(seed))
