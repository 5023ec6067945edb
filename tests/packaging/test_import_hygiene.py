"""`import lox` in a fresh process: what it must not load, and what it must not start."""

import subprocess
import sys

import pytest

HEAVY = [
    "wandb",
    "tensorboardX",
    "tensorboard",
    "rich",
    "pandas",
    "matplotlib",
    "pyarrow",
    "IPython",
    "hypothesis",
    "pytest",
]
NO_BACKEND = "import jax; jax.config.update('jax_num_cpu_devices', 3)"


def fails(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return result.stderr if result.returncode else ""


@pytest.mark.parametrize("module", ["lox", "lox.loggers"])
def test_importing_loads_no_heavy_module(module):
    assert not fails(f"import {module}, sys; found = set({HEAVY}) & set(sys.modules); assert not found, found")


@pytest.mark.parametrize("module", ["lox", "lox.loggers", "lox.tensorboard", "lox.wandb"])
def test_importing_initialises_no_jax_backend(module):
    assert not fails(f"import {module}; {NO_BACKEND}")


def test_the_check_for_a_backend_can_fail():
    assert "jax_num_cpu_devices" in fails(f"import jax; jax.devices(); {NO_BACKEND}")


def test_the_loggers_are_not_imported_by_core():
    assert not fails("import lox, sys; assert 'lox.loggers' not in sys.modules")


def test_naming_the_backends_imports_none_of_them():
    assert not fails(
        "import lox.loggers, sys; names = set(lox.loggers.available())\n"
        "assert {'console', 'save', 'tensorboard', 'wandb'} <= names, names\n"
        f"found = set({HEAVY}) & set(sys.modules); assert not found, found"
    )
