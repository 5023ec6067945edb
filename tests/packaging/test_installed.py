"""The distributions in virtual environments of their own: as wheels, editable, mixed, and after an uninstall."""

import functools
import json

import pytest

from tests.packaging.wheels import DISTRIBUTIONS, Venv, editable

MODULES = {
    "lox-core": "lox",
    "lox-loggers": "lox.loggers",
    "lox-tensorboard": "lox.tensorboard",
    "lox-wandb": "lox.wandb",
}
OF_LOGGERS = {"console", "csv", "jsonl", "memory", "multi", "progress", "save"}
ENTRY_POINTS = {
    "lox-core": set(),
    "lox-loggers": OF_LOGGERS,
    "lox-tensorboard": {"tensorboard"},
    "lox-wandb": {"wandb"},
}

# What is asked for, as a user would by name, and what is there then.
WHEELS_ONLY = {
    ("lox-core",): ["lox-core"],
    ("lox-core", "lox-tensorboard"): ["lox-core", "lox-loggers", "lox-tensorboard"],
    ("lox-wandb", "lox-tensorboard"): list(DISTRIBUTIONS),
}
EDITABLE = {
    "all editable": {"wheels": [], "editable": list(DISTRIBUTIONS)},
    "core a wheel, the rest editable": {"wheels": ["lox-core"], "editable": list(DISTRIBUTIONS[1:])},
    "core editable, the rest wheels": {"wheels": list(DISTRIBUTIONS[1:]), "editable": ["lox-core"]},
}

REPORT = """
import importlib, json, sys
from importlib.metadata import entry_points

def attempt(name):
    try:
        return importlib.import_module(name).__name__
    except ImportError as error:
        return f"{type(error).__name__}: {error}"

print(json.dumps({
    "modules": {name: attempt(name) for name in ["lox", "lox.loggers", "lox.tensorboard", "lox.wandb"]},
    "entry points": {ep.name: ep.load().__name__ for ep in entry_points(group="lox.loggers")},
    "from the repository": [path for path in sys.path if path.endswith("src")],
}))
"""

SPOOL = """
import jax, lox
def body(total, x):
    lox.log({"total": total + x})
    return total + x, None
print(lox.spool(jax.jit(lambda xs: jax.lax.scan(body, 0, xs)[0]))(jax.numpy.arange(4))[1])
"""


def report(venv):
    return json.loads(venv.python(REPORT).stdout)


def check(venv, installed):
    """Every installed module is imported, every other one says what to install, and all entry points load."""
    found = report(venv)
    for distribution, module in MODULES.items():
        if distribution in installed:
            assert found["modules"][module] == module
        else:
            assert found["modules"][module] == (
                f"ModuleNotFoundError: {module} is not installed. Install it: pip install {distribution}"
            )
    assert set(found["entry points"]) == set().union(*(ENTRY_POINTS[name] for name in installed))
    return found


@pytest.fixture(scope="module")
def install_wheels(wheels, tmp_path_factory):
    """Installs distributions by name, from the wheels alone. The same names give the same environment again."""

    @functools.cache
    def install(names):
        venv = Venv.create(tmp_path_factory.mktemp("venv"))
        venv.install("--find-links", wheels["lox-core"].parent, *names)
        return venv

    return install


@pytest.fixture(params=WHEELS_ONLY, ids=" ".join)
def wheel_venv(request, install_wheels):
    return install_wheels(request.param), WHEELS_ONLY[request.param]


def test_wheels_alone_give_the_namespace(wheel_venv):
    venv, installed = wheel_venv
    assert check(venv, installed)["from the repository"] == []


def test_wheels_alone_spool(wheel_venv):
    assert wheel_venv[0].python(SPOOL).stdout == "{'total': [0, 1, 3, 6]}\n"


def test_importing_from_wheels_loads_no_backend_and_no_heavy_module(wheel_venv):
    venv, installed = wheel_venv
    imports = "import lox" + (", lox.loggers" if "lox-loggers" in installed else "")
    seen = venv.python(
        f"{imports}, sys, jax\n"
        "heavy = {'wandb', 'tensorboardX', 'tensorboard', 'rich', 'pandas', 'matplotlib', 'pyarrow'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
        "jax.config.update('jax_num_cpu_devices', 3)\n"  # refused once a backend is initialised
        "print(len(jax.devices('cpu')))\n"
    )
    assert seen.stdout.splitlines() == ["[]", "3"]


def test_core_alone_shows_logs_in_a_notebook_and_says_what_a_figure_needs(install_wheels):
    venv = install_wheels(("lox-core",))
    said = venv.python(
        "import lox, numpy\n"
        "logs = lox.logdict({'x': numpy.arange(3.0)}, stacked=['x'])\n"
        "assert '<svg' in logs._repr_html_()\n"
        "try:\n    logs.plot()\nexcept ImportError as error:\n    print(error)\n"
    )
    assert said.stdout == "logs.plot() needs lox-loggers and matplotlib: pip install 'lox-loggers[plot]'\n"


def test_core_and_tensorboard_is_enough_to_write_event_files(install_wheels):
    venv = install_wheels(("lox-core", "lox-tensorboard"))
    venv.python(
        "import jax, lox, lox.loggers\n"
        "assert 'wandb' not in lox.loggers.available()\n"
        "with lox.loggers.create('tensorboard', path='runs') as logger:\n"
        "    run = logger.init(jax.random.key(0))\n"
        "    logger.spool(lambda x: lox.log({'x': x}, step=0), run)(1.0)\n"
    )
    (events,) = (venv.folder / "runs").rglob("*tfevents*")
    assert events.stat().st_size > 0


def test_the_command_is_installed_with_the_loggers(wheel_venv):
    venv, installed = wheel_venv
    command = venv.bin / "lox"
    if "lox-loggers" in installed:
        assert "usage: lox" in venv.python(f"import subprocess; subprocess.run([{str(command)!r}, '--help'])").stdout
    else:
        assert not command.exists()


@pytest.mark.every(2)
@pytest.mark.parametrize("how", EDITABLE)
def test_editable_and_mixed_installs_give_the_namespace(how, wheels, tmp_path):
    venv = Venv.create(tmp_path / "venv")
    venv.install(*(wheels[name] for name in EDITABLE[how]["wheels"]), *editable(EDITABLE[how]["editable"]))
    found = check(venv, DISTRIBUTIONS)
    assert len(found["from the repository"]) == len(EDITABLE[how]["editable"])


def test_uninstalling_a_sibling_leaves_the_others_working(wheels, tmp_path):
    venv = Venv.create(tmp_path / "venv")
    venv.install(*wheels.values())
    left = list(DISTRIBUTIONS)
    check(venv, left)  # also so that there are compiled files which could be left behind
    for gone in ["lox-wandb", "lox-tensorboard", "lox-loggers"]:
        venv.uninstall(gone)
        left.remove(gone)
        check(venv, left)
    assert venv.python(SPOOL).stdout == "{'total': [0, 1, 3, 6]}\n"
