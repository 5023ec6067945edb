"""From a vmapped training run to the curves on TensorBoard's page."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import lox
from lox.loggers import Run
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import table
from tests.tensorboard.server import browser, page, serve, wait_for

STEPS = 150


def train(floor: jax.Array) -> jax.Array:
    """Gradient descent on a parabola; how high it lies keeps the curves of several runs apart."""

    def update(x: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        loss, gradient = jax.value_and_grad(lambda x: x**2 + floor)(x)
        lox.log({"train/loss": loss}, step=step)
        return x - 0.01 * gradient, None

    return jax.lax.scan(update, jnp.float32(1.0), jnp.arange(STEPS))[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with 8 vmapped runs, and for each of them the curve that it should show."""
    logdir = tmp_path_factory.mktemp("page")
    floors = jnp.linspace(0.5, 4.0, 8)
    with TensorBoardLogger(logdir / "runs", hparams={"task": "parabola"}) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
        jax.jit(jax.vmap(lambda state, floor: logger.spool(train, state)(floor)))(states, floors)
        logger.flush()
        names = [run.name for run in logger.runs]
    _, logs = jax.vmap(lox.spool(train))(floors)
    curves = {name: np.asarray(curve) for name, curve in zip(names, logs["train/loss"], strict=True)}
    return logdir, curves


@pytest.mark.parametrize("fast", [True, False], ids=["data server", "python"])
def test_the_server_has_every_value_of_8_vmapped_runs(runs, fast):
    logdir, curves = runs
    with serve(logdir / "runs", logdir / "log.txt", fast=fast) as server:
        wait_for(lambda: set(server.runs()) == set(curves), "the 8 runs")
        for name, curve in curves.items():
            wait_for(lambda name=name: len(server.scalars(name, "train/loss")) >= STEPS, "all steps")
            found = server.scalars(name, "train/loss")
            assert [step for step, _ in found] == list(range(STEPS))
            np.testing.assert_allclose([value for _, value in found], curve, rtol=1e-6)


@pytest.mark.parametrize("fast", [True, False], ids=["data server", "python"])
def test_the_server_shows_a_run_that_crashed_and_went_on_as_one_curve(tmp_path, fast):
    with TensorBoardLogger(tmp_path / "runs") as logger:
        logger.open(Run("run")).write(table({"loss": np.ones(20)}, step=np.arange(20)))
        writer = logger.open(Run("run", resume=True))
        writer.write(table({"loss": np.full(20, 2.0)}, step=np.arange(10, 30)))
        writer.close()
    with serve(tmp_path / "runs", tmp_path / "log.txt", fast=fast) as server:
        wait_for(lambda: server.runs() == ["run"] and len(server.scalars("run", "loss")) >= 30, "the run")
        assert server.scalars("run", "loss") == [(step, 1.0 if step < 10 else 2.0) for step in range(30)]


@pytest.mark.skipif(browser() is None, reason="no browser: install chromium and chromium-driver")
def test_the_page_draws_a_curve_for_each_of_8_vmapped_runs(runs):
    pytest.importorskip("selenium", reason="selenium drives the browser")
    logdir, curves = runs
    with serve(logdir / "runs", logdir / "log.txt", fast=False) as server:
        wait_for(lambda: set(server.runs()) == set(curves), "the 8 runs")
        with page(f"{server.url}?smoothing=0#timeseries") as driver:
            listed = wait_for(lambda: _listed_runs(driver, len(curves)), "the list of runs")
            assert {run.split()[0] for run in listed} == set(curves)
            # Colours repeat after seven runs. Each one that was given out is drawn from left to right.
            colours = set(listed.values())
            assert len(colours) >= 7
            wait_for(lambda: all(_extent(_chart(driver), colour) > 0.6 for colour in colours), "the curves")
            chart = _chart(driver)
            assert _curves_across(chart, colours) == 8


def _listed_runs(driver, number):
    """The names of the runs in the list, with the colour of each."""
    found = driver.execute_script(
        """
        return [...document.querySelectorAll('runs-data-table tb-data-table-content-row')].map(row => [
            row.innerText.trim(),
            getComputedStyle(row.querySelector('button.run-color-swatch')).backgroundColor,
        ]);
        """
    )
    return dict(found) if len(found) == number else None


def _chart(driver):
    (chart,) = driver.find_elements("css selector", "scalar-card line-chart") or [None]
    if chart is None:
        return np.zeros((1, 1, 3))
    return np.asarray(Image.open(io.BytesIO(chart.screenshot_as_png)).convert("RGB")).astype(int)


def _drawn(chart, colour):
    """Where the pixels have that colour."""
    wanted = [int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return abs(chart - wanted).max(axis=-1) < 12


def _extent(chart, colour):
    """Over how much of the chart's width there are pixels of that colour."""
    columns = np.flatnonzero(_drawn(chart, colour).any(axis=0))
    return (columns.max() - columns.min()) / chart.shape[1] if len(columns) else 0.0


def _curves_across(chart, colours):
    """How many lines a vertical cut through the middle of the chart meets, nearly everywhere."""
    drawn = np.any([_drawn(chart, colour) for colour in colours], axis=0)
    middle = drawn[:, int(0.3 * chart.shape[1]) : int(0.7 * chart.shape[1])]
    lines = np.count_nonzero(np.diff(middle.astype(int), axis=0, prepend=0) == 1, axis=0)
    return np.median(lines)
