"""What holds for every test: the CPU, several devices of it, and no time limits that a busy machine would break."""

import os

# Before anything imports jax, here or in a process that a test starts.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.pop("LOX_LOGGERS", None)  # what create() means shall not depend on who runs the tests

import hypothesis
import jax
import pytest

# The code generator that XLA for the CPU has by default takes twice as long over programs as small as those of tests. The
# other one is there up to JAX 0.10, so newer versions are tested with the default; XLA_FLAGS="" says the default here too.
_flags = os.environ.get("XLA_FLAGS")
if _flags is None and jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

# Enough for a 4 x 2 mesh. Not through XLA_FLAGS: processes that tests start shall see the machine as it is.
jax.config.update("jax_num_cpu_devices", 8)

# XLA reads its flags when it starts. They are not for the processes that tests start, which may have another JAX.
jax.devices()
if _flags is None:
    os.environ.pop("XLA_FLAGS", None)

# Settings of JAX under which all tests run: LOX_TEST_JAX_FLAGS=jax_remat3,jax_custom_vjp3
for flag in filter(None, os.environ.get("LOX_TEST_JAX_FLAGS", "").split(",")):
    jax.config.update(flag, True)

# The first call of anything compiles it, so the time of one example says nothing.
hypothesis.settings.register_profile("lox", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("lox")


# Every how many programs of the corpus a test is run on: LOX_TEST_EVERY=4 is every fourth, where all would take too long. By
# default the laws see all of them, and the sweeps of what is built on the same rules every third; at night those see all too.
EVERY = os.environ.get("LOX_TEST_EVERY")
SWEEPS = {"test_probe.py", "test_find_nonfinite.py", "test_follow.py"}


@pytest.hookimpl(tryfirst=True)  # before xdist, which tells its workers what is in which group
def pytest_collection_modifyitems(config, items):
    """Tests that share something that takes long are run by one worker, so that it is made once."""
    programs = {program: None for item in items if (program := _program(item)) is not None}
    number = {program: i for i, program in enumerate(programs)}

    def is_left_out(item):
        every = int(EVERY or (3 if item.path.name in SWEEPS else 1))
        return _program(item) is not None and number[_program(item)] % every != 0

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item):
    """A program of the corpus, or a fixture of ours that lives longer than a test; None for a test that stands alone."""
    if (program := _program(item)) is not None:
        return f"{item.path.stem} {program}"
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).values()
    ours = {each.scope: each.baseid for each, *_ in definitions if each.baseid.startswith("tests/")}
    return ours.get("session") or ours.get("module")


def _program(item):
    """The name of the program of the corpus that a test is about."""
    program = getattr(getattr(item, "callspec", None), "params", {}).get("program")
    return getattr(program, "name", None)
