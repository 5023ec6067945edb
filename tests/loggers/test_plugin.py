"""The example of a third-party backend: built as a wheel, installed into an empty environment, found by name."""

import re
import sys

import pytest

import lox.loggers
from tests.packaging.wheels import ROOT, Venv, build, run

PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    wheels = tmp_path_factory.mktemp("wheels")
    built = [build(source, wheels) for source in ("lox-core", "lox-loggers", PLUGIN)]
    venv = Venv.create(tmp_path_factory.mktemp("plugin") / "venv")
    venv.install(*built, "pytest")
    return venv


def test_it_is_found_by_name_and_works(venv):
    code = """
import jax, lox, lox.loggers, sqlite3, sys
print(lox.loggers.available()["example-sqlite"], "lox_example_sqlite" in sys.modules)
def train(xs):
    def step(total, x):
        lox.log({"total": total + x}, step=x)
        return total + x, None
    return jax.lax.scan(step, 0, xs)[0]
with lox.loggers.create("example-sqlite", path="runs.db") as logger:
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    jax.vmap(lambda state, n: logger.spool(train, state)(n * jax.numpy.arange(3)))(states, jax.numpy.arange(1, 3))
print(sqlite3.connect("runs.db").execute("SELECT steps, value FROM records ORDER BY rowid").fetchall())
"""
    found, rows = venv.python(code).stdout.splitlines()
    assert found == "lox_example_sqlite:ExampleSqliteLogger from lox-example-sqlite 1.0.0 False"
    expected = [(0, 0), (1, 1), (2, 3), (0, 0), (2, 2), (4, 6)]
    assert eval(rows) == [(f'{{"step": {step}}}', value) for step, value in expected]
    listed = run(venv.bin / "lox", "loggers", cwd=venv.folder).stdout
    assert "lox-example-sqlite 1.0.0  ok" in listed


def test_it_keeps_the_contract(venv):
    result = run(venv.bin / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN / "tests", cwd=venv.folder)
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout


def test_the_page_on_writing_a_backend_shows_what_works(tmp_path, monkeypatch):
    """Every Python example of the page runs, in order, in one program."""
    page = (ROOT / "docs" / "backends.md").read_text()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    program = "\n".join(block for block in blocks if not block.startswith(">>>"))  # those run with the other pages
    page_names = {"__name__": "page"}
    exec(compile(program, "backends.md", "exec"), page_names)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == 12
    assert len({line.split()[0] for line in lines}) == 4
    assert (tmp_path / "runs/backends/0000000000000000.txt").read_text() == '[{"step": 1}, {"loss": 0.5}]\n'
    file = tmp_path / "runs/backends/0000000000000000.txt"
    recording = page_names["PathReader"]().read(lox.loggers.StoredRun("a", (file,)), lambda label: True)
    assert recording.logs["loss"].tolist() == [0.5]
    assert recording.logs.step["loss"].tolist() == [1]
    (tmp_path / "test_page.py").write_text(program)
    result = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py", cwd=tmp_path)
    assert re.search(r"\d\d passed, 8 skipped", result.stdout), result.stdout
