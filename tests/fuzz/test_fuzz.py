"""A few hundred random programs, and those that once broke a law. More of them: ``hatch run fuzz 20000``."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from tests.fuzz import expect, laws, planted
from tests.fuzz.finds import FINDS, Find
from tests.fuzz.generate import from_seed, generate
from tests.fuzz.kinds import ALL, kinds_of
from tests.fuzz.laws import Case
from tests.fuzz.runner import check, laws_for
from tests.fuzz.shrink import shrink

CHUNK = 10


@pytest.mark.every(2)
@pytest.mark.parametrize("first", range(0, 600, 3 * CHUNK))
def test_random_programs_keep_every_law(first: int) -> None:
    for seed in range(first, first + 3 * CHUNK):
        failure = check(from_seed(seed), seed, laws_for(seed))
        assert failure is None, f"seed {seed}: {failure}"
    jax.clear_caches()


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_a_nan_planted_in_a_random_program_is_found(first: int) -> None:
    for seed in range(first, first + CHUNK):
        planted.check(seed)
    jax.clear_caches()


@hypothesis.settings(max_examples=40)
@hypothesis.given(source=st.randoms(use_true_random=False), turn=st.integers(0, 11))
def test_programs_that_hypothesis_makes_keep_every_law(source: random.Random, turn: int) -> None:
    failure = check(generate(source), turn)
    assert failure is None, str(failure)


@pytest.mark.parametrize("find", FINDS, ids=lambda find: find.name)
def test_what_once_broke_a_law_keeps_it(find: Find) -> None:
    case = Case(find.program, find.turn)
    run = case.gradient_run if find.of_gradient else case.run
    rows = {key: [row.value for row in rows] for key, rows in expect.rows_by_key(run.rows).items()}
    assert rows == find.rows
    for law in (find.law, *laws.LAWS):
        law(case)


def test_a_seed_makes_the_same_program_again() -> None:
    assert from_seed(7) == from_seed(7)
    assert len({repr(from_seed(seed)) for seed in range(50)}) == 50


def test_every_law_is_drawn() -> None:
    drawn = Counter(law for seed in range(2000) for law in laws_for(seed))
    assert set(drawn) == set(laws_for(0, thorough=True)) == {*laws.LAWS, *laws.COMPILED}
    assert min(drawn[law] for law in laws.LAWS) > 500
    assert min(drawn[law] for law in laws.COMPILED) > 5


def test_every_kind_of_statement_occurs() -> None:
    found: Counter[str] = sum((kinds_of(from_seed(seed)) for seed in range(6000)), Counter())
    assert [kind for kind in ALL if found[kind] < 2] == []


def test_the_text_of_a_program_is_its_source() -> None:
    from tests.fuzz import program as language

    for seed in range(20):
        program = from_seed(seed)
        assert eval(repr(program), vars(language)) == program


def test_shrinking_keeps_what_fails_and_nothing_else() -> None:
    program = next(p for p in map(from_seed, range(100)) if p.has("checkpoint") and len(list(p.statements())) > 4)
    smallest = shrink(program, lambda candidate: candidate.has("checkpoint"))
    assert smallest.has("checkpoint")
    assert len(list(smallest.statements())) == 1


def test_the_oracle_notices_a_changed_program() -> None:
    """The laws can fail: the JAX function of one program does not keep those of another."""
    programs = [p for p in map(from_seed, range(40)) if laws.Case(p).uses]
    noticed = 0
    for one, other in itertools.pairwise(programs[:11]):
        case = Case(one)
        case.f = Case(other).f
        try:
            laws.spool_rows(case)
        except Exception:
            noticed += 1
    assert noticed == 10
