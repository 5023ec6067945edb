"""What holds for every test: the CPU, several devices of it, and no time limits that a busy machine would break."""

import os

# Before anything imports jax, here or in a process that a test starts.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.pop("LOX_LOGGERS", None)  # what create() means shall not depend on who runs the tests

import hypothesis
import jax

# Enough for a 4 x 2 mesh. Not through XLA_FLAGS: processes that tests start shall see the machine as it is.
jax.config.update("jax_num_cpu_devices", 8)

# Settings of JAX under which all tests run: LOX_TEST_JAX_FLAGS=jax_remat3,jax_custom_vjp3
for flag in filter(None, os.environ.get("LOX_TEST_JAX_FLAGS", "").split(",")):
    jax.config.update(flag, True)

# The first call of anything compiles it, so the time of one example says nothing.
hypothesis.settings.register_profile("lox", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("lox")
