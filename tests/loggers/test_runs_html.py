"""What a notebook shows of loaded and of open runs, and figures of logs that no file has."""

import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import Runs
from tests.html_checks import page_of


def train(key, rate):
    def step(w, i):
        lox.log({"loss": jnp.sum(w**2), "w": w}, step=i)
        return w * (1 - rate), None

    return jax.lax.scan(step, jax.random.normal(key, (3,)), jnp.arange(20))[0]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    keys, rates = jax.random.split(jax.random.key(0), 4), jnp.array([0.1, 0.2, 0.3, 0.4])
    with lox.loggers.SaveLogger(folder, name="rate={rate:.1f}") as logger:
        config = {"env": "<CartPole>", "net": {"width": 8}}
        states = jax.vmap(lambda key, rate: logger.init(key, {"rate": rate, **config}))(keys, rates)
        jax.vmap(lambda state, key, rate: logger.spool(train, state)(key, rate))(states, keys, rates)
        shown = page_of(logger.runs)
    return lox.loggers.load(folder), shown


def test_loaded_runs_are_a_table_of_keys_and_a_table_of_runs_with_their_config(sweep):
    runs, _ = sweep
    page = page_of(runs)
    assert "4 runs" in page.text
    keys, rows = page.rows(0), page.rows(1)
    assert list(keys) == ["loss", "w [3]"]
    last = np.asarray([logs["loss"][-1] for logs in runs.values()], np.float64)
    assert keys["loss"]["last"] == f"{last.mean():.4g} ± {last.std():.4g}"
    assert keys["loss"]["steps"] == "step 0 … 19"
    assert list(rows) == ["rate=0.1", "rate=0.2", "rate=0.3", "rate=0.4"]
    assert [row["rate"] for row in rows.values()] == ["0.1", "0.2", "0.3", "0.4"]
    assert rows["rate=0.1"]["loss"] == f"{last[0]:.4g}"
    assert "all: env = <CartPole>, net/width = 8" in page.text
    assert page.curves == 2 + 4 * 2


def test_open_runs_are_a_table_with_their_config(sweep):
    _, page = sweep
    assert "4 open" in page.text
    assert [row["rate"] for row in page.rows().values()] == ["0.1", "0.2", "0.3", "0.4"]
    with lox.loggers.create(["memory", "memory"]) as logger:
        assert isinstance(logger.runs, tuple)
        assert "0 open" in page_of(logger.runs).text
        logger.init(jax.random.key(0))
        assert len(page_of(logger.runs).tables[0]) == 1 + 2


def test_odd_runs_are_shown():
    def logs(values, **steps):
        return lox.logdict({"x": values}, {axis: {"x": step} for axis, step in steps.items()}, stacked=["x"])

    one, other = np.arange(5.0), np.array([np.nan, np.inf, 3.0])
    assert "none" in page_of(Runs({})).text
    assert page_of(Runs({"a": lox.logdict()})).rows(0) == {"a": {}}
    mixed = Runs({"a": logs(one, step=np.arange(5)), "b": logs(other, epoch=np.arange(3)), "c": logs(one[:0])})
    assert list(page_of(mixed).rows(0)) == ["x 2 values not finite"]
    text = Runs({"<b>": logs(np.array(["<i>", "<u>"])), "b": logs(one + 1e308)}, {"<b>": {"<c>": ["<d>"]}})
    assert list(page_of(text).rows(1)) == ["<b>", "b"]


def test_many_runs_are_not_all_shown():
    runs = Runs(
        {
            f"run{n}": lox.logdict(
                {f"key{k}": np.arange(9.0) for k in range(50)}, stacked=[f"key{k}" for k in range(50)]
            )
            for n in range(100)
        }
    )
    page = page_of(runs)
    assert (len(page.rows(0)), len(page.rows(1))) == (20, 20)
    assert "and 30 more keys" in page.text
    assert "and 80 more runs" in page.text
    assert len(runs._repr_html_()) < 200_000


# --- figures ---------------------------------------------------------------------------------------------------------


def test_logs_are_drawn_as_lox_plot_draws_them(sweep):
    pytest.importorskip("matplotlib")
    _, logs = lox.spool(train)(jax.random.key(0), 0.1)
    loss, weights = logs.plot().axes
    (line,) = loss.lines
    assert (loss.get_xlabel(), loss.get_ylabel(), weights.get_ylabel()) == ("step", "loss", "w (mean of 3)")
    np.testing.assert_array_equal(line.get_xdata(), np.arange(20))
    np.testing.assert_array_equal(line.get_ydata(), logs["loss"])
    (axes,) = logs.plot("loss", log=True).axes
    assert axes.get_yscale() == "log"


def test_lanes_are_drawn_with_a_band_or_each():
    pytest.importorskip("matplotlib")
    _, logs = jax.vmap(lox.spool(train), (0, None))(jax.random.split(jax.random.key(0), 4), 0.1)
    (axes,) = logs.plot("loss").axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.asarray(logs["loss"], np.float64).mean(0), rtol=1e-6)
    assert len(axes.collections) == 1
    (axes,) = logs.plot("loss", each=True).axes
    assert [line.get_label() for line in axes.lines] == ["lane 0", "lane 1", "lane 2", "lane 3"]
    without = lox.logdict({"x": np.ones((4, 4))}, stacked=["x"])
    assert without.plot(lanes=1).axes[0].lines[0].get_xdata().tolist() == [0, 1, 2, 3]


def test_a_figure_shows_itself_without_pyplot_and_can_be_pickled():
    pytest.importorskip("matplotlib")
    figure = lox.logdict({"x": np.arange(3.0)}, stacked=["x"]).plot()
    picture, size = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    assert size == {"width": 462, "height": 330}
    assert type(pickle.loads(pickle.dumps(figure))) is type(figure)


def test_what_cannot_be_drawn_is_told(monkeypatch):
    with pytest.raises(lox.LoxError, match="nothing to draw"):
        lox.logdict({"x": 1.0}).plot()
    with pytest.raises(lox.LoxError, match="outside jit"):
        jax.jit(lambda key: lox.spool(train)(key, 0.1)[1].plot())(jax.random.key(0))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'lox-loggers\[plot\]'"):
        lox.logdict({"x": np.arange(3.0)}, stacked=["x"]).plot()
    monkeypatch.setitem(sys.modules, "lox.loggers._compare.logs", None)
    with pytest.raises(ImportError, match=r"logs.plot\(\) needs lox-loggers and matplotlib"):
        lox.logdict({"x": np.arange(3.0)}, stacked=["x"]).plot()
