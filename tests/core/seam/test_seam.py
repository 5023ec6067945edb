"""``import lox`` changes nothing in JAX; using it changes what the table of backports says, and programs without marks
never notice."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import re
import threading

import jax
import pytest

import lox
from lox._jax import backports, compat
from lox._jax.hi_primitives import ARE_SETTLED
from scripts import ablation
from tests.core.seam.in_process import ROOT, every, run

NEEDED = [port for port in backports.BACKPORTS if port.is_needed()]


def places(ports: list[backports.Backport]) -> set[str]:
    """The names under which a snapshot has them: by table and primitive."""
    return {
        f"{port.place.table}[{port.place.primitive.find()}]"
        if isinstance(port.place, backports.TableEntry)
        else str(port.place)
        for port in ports
    }


def test_importing_lox_and_its_loggers_changes_nothing_in_jax_and_using_it_what_the_table_says():
    found = run("changed_places", *run("loaded_by_lox"))
    for step in ("import lox", "import lox.loggers"):
        new, gone, changed = found[step]
        assert gone == changed == []
        # The rules of lox's own primitives are entered in JAX's tables, as anybody's are.
        assert new
        assert all(re.search(r"\[lox_\w+\]$", place) for place in new)

    new, gone, changed = found["use"]
    assert gone == []
    # Modules of JAX share their tables: jax.interpreters has some of jax._src.interpreters.
    assert {place.replace("jax.interpreters", "jax._src.interpreters") for place in changed} == places(NEEDED)
    assert any("LogEffect" in place for place in new)


def test_a_jax_without_a_place_is_an_error_at_the_first_mark_that_says_so():
    results = run("without_a_place")
    for port in NEEDED:
        unmarked, *marked = results[port.name]["said"]
        assert unmarked == 2.0
        for message in marked:
            assert message.startswith(
                f"IncompatibleJaxError: lox: JAX {jax.__version__} has no {port.place}, which lox needs"
            )
            assert f"lox was tested with JAX {', '.join(compat.TESTED_JAX)}" in message
        assert results[port.name]["changed"] == []  # all or nothing


def test_a_program_without_marks_is_the_same_with_and_without_lox():
    """Each of the corpus, and random ones: the program, its values, types, weak types and shardings, and its host calls."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        expected, *others = pool.map(functools.partial(run, "programs"), ("absent", "imported", "used"))
    assert len(expected) > 80 / every()
    assert {calls for *_, calls, _ in expected.values()} == {0}
    for found in others:
        assert [name for name in expected if found[name] != expected[name]] == []


def test_each_backport_is_needed_and_does_what_it_is_for():
    """Where this JAX does without one, it goes: give it an ``until``."""
    results = run("witnesses_without")
    for port in NEEDED:
        found = results[port.name]
        assert found["with"] == found["expected"], port.name
        assert found["without"] != found["expected"], f"JAX {jax.__version__} no longer needs {port.name!r}"
    page = (ROOT / "docs" / "seam.md").read_text().splitlines()
    assert set(ablation.lines(results)) <= set(page)


@pytest.mark.skipif(not ARE_SETTLED, reason="jax_remat3 is another thing in this JAX")
def test_the_first_mark_of_a_process_may_be_in_a_derivative_rule_in_a_checkpoint():
    """By then JAX is in the middle of the checkpoint."""
    found, expected = run("first_mark_in_a_rule")
    assert found == expected


def test_it_is_installed_once():
    """Whoever installs it again wraps nothing that is wrapped already."""
    backports.install()
    found = [port.place.find() for port in NEEDED]
    threads = [threading.Thread(target=backports.install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lox.spool(lambda x: (lox.log({"x": x}), x)[1])(1.0)
    assert [port.place.find() for port in NEEDED] == found


def test_the_page_has_every_change():
    lines = (ROOT / "docs" / "seam.md").read_text().splitlines()
    named = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    for port in backports.BACKPORTS:
        assert named.count(port.name) == 2, port.name  # what is changed, and what goes wrong without it


def test_the_tested_versions_are_those_of_the_matrix():
    matrix = (ROOT / "hatch.toml").read_text()
    *pinned, _ = compat.TESTED_JAX
    assert f"jax = {json.dumps([*pinned, 'newest'])}" in matrix
