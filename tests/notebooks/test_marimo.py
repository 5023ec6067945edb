"""A real notebook of marimo: logs show themselves, and live displays are outputs of their cells."""

import html
import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("marimo", reason="needs marimo: pip install marimo")

from tests.html_checks import Page

NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def setup():
    import marimo as mo
    import jax, jax.numpy as jnp
    import lox, lox.loggers

    def train(key, steps=30):
        def step(w, i):
            lox.log({"loss": jnp.sum(w**2)}, step=i)
            return w * 0.9, None
        return jax.lax.scan(step, jax.random.normal(key, (4,)), jnp.arange(steps))[0]
    return jax, lox, mo, train

@app.cell
def logs(jax, lox, train):
    _, logs = lox.spool(train)(jax.random.key(0))
    logs
    return

@app.cell
def progress(jax, lox, train):
    with lox.loggers.create("progress", total=30, metrics="loss") as _logger:
        jax.jit(_logger.tap(train, _logger.init(jax.random.key(0))))(jax.random.key(1))
    return

@app.cell
def both(jax, lox, mo, train):
    mo.output.append(mo.md("before"))
    with lox.loggers.create(["console", "progress"]) as _logger:
        jax.jit(_logger.tap(train, _logger.init(jax.random.key(0))))(jax.random.key(1))
    mo.output.append(mo.md("after"))
    return

@app.cell
def unmarked(jax, lox, train):
    _bar = lox.loggers.progress(jax.jit(train, static_argnums=1))
    for _ in range(2):
        _bar(jax.random.key(0), 30).block_until_ready()
        jax.effects_barrier()
    import time as _time
    _time.sleep(1)
    return

@app.cell
def init(jax, lox):
    logger = lox.loggers.create("console", interval=0)
    state = logger.init(jax.random.key(0))
    return logger, state

@app.cell
def run(jax, logger, state, train):
    jax.jit(logger.tap(train, state))(jax.random.key(1))
    logger.close()
    return
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marimo")
    (folder / "notebook.py").write_text(NOTEBOOK)
    command = [sys.executable, "-m", "marimo", "export", "html", "notebook.py", "-o", "page.html", "--no-include-code"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "elapsed" not in done.stdout + done.stderr  # lines would be there
    page = (folder / "page.html").read_text()
    cells = json.loads(re.search(r'"session":\s*(\{.*\}),\s*"runtimeConfig"', page, re.DOTALL)[1])["cells"]
    names = re.findall(r"^def (\w+)\(", NOTEBOOK, re.MULTILINE)
    return dict(zip(names, [cell["outputs"] for cell in cells], strict=True))


def text(outputs):
    """What a cell shows, without the tags."""
    (output,) = outputs
    shown = output["data"].get("text/html", "")
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", shown, flags=re.DOTALL)).split())


def test_logs_show_themselves(outputs):
    page = Page(outputs["logs"][0]["data"]["text/html"])
    assert page.rows()["loss"]["records"] == "30"
    assert page.curves == 1


def test_a_bar_is_an_output_with_its_last_state(outputs):
    assert re.fullmatch(r"00000000 30/30 \(100%\) elapsed .* loss=\S+", text(outputs["progress"]))


def test_the_bar_of_an_unmarked_program_is_an_output(outputs):
    assert "30/30 (100%)" in text(outputs["unmarked"])


def test_several_displays_stand_between_what_the_cell_itself_shows(outputs):
    shown = text(outputs["both"])
    assert re.fullmatch(r"before 0{16} step 29, 30 records, .* loss .* 00000000 30 elapsed .* after", shown)


def test_an_output_is_below_the_cell_that_runs_the_program(outputs):
    assert text(outputs["init"]) == ""
    assert "step 29, 30 records" in text(outputs["run"])
