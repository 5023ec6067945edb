"""The examples run as scripts, in an empty folder, on small sizes, and do what they say."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lox.loggers
from tests.packaging.wheels import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(tmp_path):
    """Runs an example in a folder of its own, and returns what it printed."""

    def run(name, *options):
        environment = {**os.environ, "WANDB_SILENT": "true"}
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_example_is_tested():
    own_text = Path(__file__).read_text()
    untested = {path.name for path in EXAMPLES.glob("*.py") if f'run("{path.name}"' not in own_text}
    assert untested == {"demo.py"}  # tests/packaging/test_demo.py has that one


def test_quickstart(run, tmp_path):
    printed = run("quickstart.py", "--steps=20", "--seeds=3")
    assert printed.count("step ") == 5
    logs = lox.loggers.load(tmp_path / "runs/examples/quickstart", stack=True)
    assert logs["train/loss"].shape == (3, 20)


def test_regression_console(run):
    printed = run("regression_console.py", "--steps=400", "--every=100")
    assert "train/loss=" in printed
    assert "step=400" in printed


def test_ppo_seeds(run, tmp_path):
    pytest.importorskip("optax")
    from tests.tensorboard.reading import scalars

    printed = run("ppo_seeds.py", "--seeds=2", "--updates=3")
    assert printed.count("records of returns") == 2
    folders = sorted((tmp_path / "runs/examples/ppo_seeds").glob("seed=*"))
    assert [folder.name for folder in folders] == ["seed=0", "seed=1"]
    for folder in folders:
        assert [step for step, _ in scalars(folder)["ppo/critic"]] == [128, 256, 384]


def test_transformer_layers(run):
    printed = run("transformer_layers.py", "--layers=3", "--width=16", "--steps=10")
    first, last = (float(number) for number in printed.split("loss ")[1].split(" in ")[0].split(" -> "))
    assert last < first
    assert len(printed.strip().splitlines()) == 3 + 3  # a line for each layer


def test_ode_diffrax(run):
    printed = run("ode_diffrax.py", "--end=2", "--capacity=64")
    if importlib.util.find_spec("diffrax") is None:
        assert printed == "skipped: this example needs diffrax (pip install diffrax)\n"
    else:
        steps = [int(line.split(":")[1].split()[0]) for line in printed.splitlines()]
        calls = [int(line.split("steps,")[1].split()[0]) for line in printed.splitlines()]
        assert calls == [6 * n + 1 for n in steps]  # six evaluations a step, and one at the start


def test_live_plot(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert run("live_plot.py", "--steps=1000", "--batch=300").startswith("1000 records plotted")
    assert (tmp_path / "live.png").stat().st_size > 5000


def test_two_processes(run, tmp_path):
    printed = run("two_processes.py", "--each")
    page = (EXAMPLES.parent / "docs" / "devices.md").read_text()
    command, *lines = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1].splitlines()
    assert command == "$ python examples/two_processes.py"
    assert set(lines) <= set(printed.splitlines())
    runs = lox.loggers.load(tmp_path / "runs/examples/two_processes")
    assert sorted(runs) == ["0000000000000000", "0000000000000001-p0", "0000000000000001-p1"]
    assert runs["0000000000000000"].step["loss"].tolist() == list(range(100))
    assert runs["0000000000000001-p0"]["mean"] < 0.5 <= runs["0000000000000001-p1"]["mean"]


def test_sweep_wandb(run, tmp_path):
    assert "2 offline runs" in run("sweep_wandb.py", "--runs=2", "--steps=60")
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == 2


def test_the_transformer_records_each_layer_once_in_the_order_of_the_passes():
    spec = importlib.util.spec_from_file_location("transformer_layers", EXAMPLES / "transformer_layers.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    import jax
    import jax.numpy as jnp

    params = example.init_params(jax.random.key(0), 3, 16, symbols=8)
    tokens = jnp.arange(5) % 8
    gradients, logs = jax.jit(lox.spool(jax.grad(example.loss_of)))(params, tokens)
    assert logs.layer["activation/rms"].tolist() == [0, 1, 2]
    assert logs.layer["gradient"].tolist() == [2, 1, 0]
    np.testing.assert_allclose(
        gradients["embed"], jax.jit(jax.grad(example.loss_of))(params, tokens)["embed"], rtol=1e-4, atol=1e-6
    )
