"""Every example in a docstring of the four packages runs, and every public function has one."""

import doctest
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
import lox.tensorboard
import lox.wandb


def modules():
    return sorted(info.name for info in pkgutil.walk_packages(lox.__path__, "lox."))


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {"lox": lox, "jax": jax, "jnp": jnp, "np": np}
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, name, extraglobs=names):
        runner.run(test, out=report.append)
    jax.effects_barrier()
    assert runner.failures == 0, "".join(report)


PUBLIC = [lox.log, lox.log_grad, lox.spool, lox.tap, lox.nolog, lox.logdict, lox.Reducer]
PUBLIC += [lox.probe, lox.find_nonfinite, lox.loggers.progress]
PUBLIC += [lox.loggers.load, lox.loggers.create, lox.loggers.available, lox.loggers.get, lox.loggers.Logger]
PUBLIC += [lox.loggers.get(name) for name in lox.loggers.available()]


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_the_docstring_of_a_public_name_has_an_example(thing):
    assert ">>>" in inspect.getdoc(thing), f"{thing.__name__} has no example in its docstring"
