"""What holds for every test: the CPU, several devices of it, and no time limits that a busy machine would break."""

import collections
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

# LOX_TEST_EVERY=1 is the nightly run: every test on every program, compiled as it would be for a user. LOX_TEST_EVERY=4 is
# every fourth program of the corpus, and of the parameters of other tests, where all would take too long. Without it, see
# `_is_left_out`.
EVERY = os.environ.get("LOX_TEST_EVERY")
AT_NIGHT = EVERY == "1"


@pytest.fixture(autouse=True)
def compilation(request):
    """XLA takes a third less time without most of its optimisations, here and in processes that a test starts. Tests that look
    at compiled programs, at what they need or at how exactly they compute are marked `compiled_as_by_users`."""
    as_by_users = "accelerators" in request.path.parts or request.node.get_closest_marker("compiled_as_by_users")
    if AT_NIGHT or as_by_users:
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    del os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"]


# The first call of anything compiles it, so the time of one example says nothing.
hypothesis.settings.register_profile("lox", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("lox")


@pytest.hookimpl(tryfirst=True)  # before xdist, which tells its workers what is in which group
def pytest_collection_modifyitems(config, items):
    """Leaves out what is left to the night. Tests that share something that takes long are run by one worker, so that it is
    made once."""
    places = _places(items)
    if not any("::" in asked for asked in config.args):  # whoever names a test wants to see it run
        config.hook.pytest_deselected(items=[item for item in items if _is_left_out(item, places)])
        items[:] = [item for item in items if not _is_left_out(item, places)]
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session):
    """What is in one group is made once only if xdist has understood which tests are in it."""
    if getattr(session.config.option, "loadgroup", False):  # a worker of xdist
        lost = [
            item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if lost:
            raise pytest.UsageError(f"xdist does not keep groups of tests together: {lost[0]}")


def _places(items):
    """The number of each program of the corpus, and of each test among those of the same function."""
    programs = dict.fromkeys(program for item in items if (program := _program(item)) is not None)
    places = {program: number for number, program in enumerate(programs)}
    numbers = collections.Counter()
    for item in items:
        function = (item.path, getattr(item, "originalname", item.name))
        places[item] = numbers[function]
        numbers[function] += 1
    return places


def _is_left_out(item, places):
    """Whether a test is left to the night: `pytest.mark.every(n)` is for functions that are run on much that is alike. For each
    change they see every nth program of the corpus or, if they are about no program, every nth of their parameters."""
    mark = item.get_closest_marker("every")
    n, first = (*mark.args, 0)[:2] if mark else (1, 0)
    if (program := _program(item)) is None:
        return not AT_NIGHT and places[item] % max(n, int(EVERY or 1)) != first
    return places[program] % int(EVERY) != 0 if EVERY else places[program] % n != first


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
