"""Makes a program that breaks a law smaller, as long as it goes on breaking it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.program import Arith, Block, Branch, Call, Log, LogGrad, Program, Scan, Statement, While, blocks_of


def shrink(program: Program, fails: Callable[[Program], bool], budget: int = 400) -> Program:
    """The smallest program found within ``budget`` attempts for which ``fails`` holds."""
    progress = True
    while progress:
        progress = False
        for candidate in smaller(program):
            budget -= 1
            if budget < 0:
                return program
            if fails(candidate):
                program, progress = candidate, True
                break
    return program


def smaller(program: Program) -> Iterator[Program]:
    for body in _smaller_blocks(program.body):
        yield dataclasses.replace(program, body=body)


def _smaller_blocks(block: Block) -> Iterator[Block]:
    statements = block.statements
    for i in range(len(statements)):
        yield Block(statements[:i] + statements[i + 1 :])
    for i, statement in enumerate(statements):
        for instead in _instead_of(statement):
            yield Block(statements[:i] + instead + statements[i + 1 :])


def _instead_of(statement: Statement) -> Iterator[tuple[Statement, ...]]:
    for inner in blocks_of(statement):
        yield inner.statements
    for simpler in _simpler(statement):
        yield (simpler,)
    for number, inner in enumerate(blocks_of(statement)):
        for body in _smaller_blocks(inner):
            yield (_with_block(statement, number, body),)


def _with_block(statement: Any, number: int, body: Block) -> Statement:
    if isinstance(statement, Branch):
        bodies = statement.bodies
        return dataclasses.replace(statement, bodies=bodies[:number] + (body,) + bodies[number + 1 :])
    return dataclasses.replace(statement, body=body)


def _simpler(statement: Statement) -> Iterator[Statement]:
    changes: list[dict[str, Any]] = []
    if isinstance(statement, Log):
        changes += [
            {"where": None},
            {"tags": ()},
            {"prefix": ""},
            {"site": 0},
            {"dtype": "float32"},
            {"explicit": False},
        ]
        changes += [{"keys": (key,)} for key in statement.keys] if len(statement.keys) > 1 else []
        changes += [{"keys": tuple(dataclasses.replace(key, **part) for key in statement.keys)} for part in _PLAINER]
    if isinstance(statement, LogGrad):
        plainer = ({"axes": ()}, {"reduce": None})
        changes += [{"where": None}, *({"key": dataclasses.replace(statement.key, **part)} for part in plainer)]
    if isinstance(statement, Scan):
        changes += [{"unroll": 1}, {"reverse": False}, {"via": "scan"}, {"length": 1}, {"length": 2}]
    if isinstance(statement, While):
        changes += [{"test": None}]
    if isinstance(statement, Branch) and len(statement.bodies) > 2:
        changes += [{"bodies": statement.bodies[:2]}, {"bodies": statement.bodies[1:]}]
    if isinstance(statement, Call):
        changes += [
            {"options": statement.options[:i] + statement.options[i + 1 :]} for i in range(len(statement.options))
        ]
    if not isinstance(statement, Arith) and getattr(statement, "a", 0):
        changes += [{"a": 0}]
    for change in changes:
        simpler = dataclasses.replace(statement, **change)
        if simpler != statement:
            yield simpler


_PLAINER: tuple[dict[str, Any], ...] = ({"axes": ()}, {"reduce": None}, {"form": "f"}, {"number": 0})
