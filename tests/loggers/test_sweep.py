"""A sweep as people run it: three learning rates, sixteen seeds, and names that can be read wherever the runs are."""

import json
import re

import jax
import jax.numpy as jnp
import pytest

import lox
from lox.loggers import Config, Histogram, create, load
from lox.loggers._cli.main import main

RATES, SEEDS = jnp.array([0.1, 0.01, 0.001]), 16
NAMES = [f"lr={rate}/seed={seed}" for rate in (0.1, 0.01, 0.001) for seed in range(SEEDS)]


def train(key, rate, steps=40):
    def step(weights, i):
        noise = jax.random.normal(jax.random.fold_in(key, i), weights.shape)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((w - 1 + 0.3 * noise) ** 2))(weights)
        lox.log({"loss": loss}, step=i)
        lox.log({"weights": Histogram(weights, 30, (-1, 2))}, step=i, where=i % 10 == 0)
        return weights - 4 * rate * gradient, None

    return jax.lax.scan(step, jnp.zeros(8), jnp.arange(steps))[0]


def run_sweep(logger):
    def run(rate, key):
        state = logger.init(key, Config(lr=rate, env="regression"))
        return logger.spool(train, state)(key, rate)

    keys = jax.random.split(jax.random.key(0), SEEDS)  # the same for every rate
    jax.jit(jax.vmap(jax.vmap(run, in_axes=(None, 0)), in_axes=(0, None)))(RATES, keys)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    backends = [(name, {"path": folder / name}) for name in ("save", "tensorboard")]
    with create(backends, name="lr={lr:g}/seed={lane[1]}") as logger:
        run_sweep(logger)
    return folder


@pytest.mark.parametrize("backend", ["save", "tensorboard"])
def test_files_have_readable_names_and_configs(swept, backend):
    runs = load(swept / backend)
    assert sorted(runs) == sorted(NAMES)
    assert all(runs.configs[name] == {"lr": float(name[3:].split("/")[0]), "env": "regression"} for name in NAMES)
    assert {rate: len(members) for rate, members in runs.by("lr").items()} == {0.001: 16, 0.01: 16, 0.1: 16}
    assert runs["lr=0.01/seed=3"]["loss"].shape == (40,)


def test_three_curves_with_intervals_and_a_legend(swept, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert not main(["plot", str(swept / "save"), "--keys", "loss", "--by", "lr", "--band", "ci95", "--json"])
    (panel,) = json.loads(capsys.readouterr().out)
    assert [curve["name"] for curve in panel["curves"]] == ["lr = 0.001", "lr = 0.01", "lr = 0.1"]
    for curve in panel["curves"]:
        assert curve["runs"] == [16, 16]
        assert all(
            low < value < high for low, value, high in zip(curve["low"], curve["values"], curve["high"], strict=True)
        )
    figure = tmp_path / "curves.svg"
    assert not main(["plot", str(swept / "save"), "--keys", "loss", "--by", "lr", "--band", "ci95", "-o", str(figure)])
    told = re.findall(r"<!-- (.*?) -->", figure.read_text())
    assert [text for text in told if text.startswith("lr")] == ["lr = 0.001", "lr = 0.01", "lr = 0.1"]
    assert any("mean of 16 runs, 95 % bootstrap interval" in text for text in told)
    assert {"loss", "step"} <= set(told)


def test_the_rows_of_the_table_say_which_run_they_are_of(swept, capsys):
    assert not main(["show", str(swept / "save"), "--keys", "loss", "--by", "lr"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "48 runs by lr"
    assert [line.split()[:4] for line in lines[2:]] == [[rate, "loss", "16", "40"] for rate in ("0.001", "0.01", "0.1")]
