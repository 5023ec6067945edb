"""One of several JAX processes: `python worker.py ADDRESS PROCESSES INDEX FOLDER SCENARIO`. See test_processes.py."""

import sys
import time

import jax

address, processes, index, folder, scenario = sys.argv[1:]
processes, index = int(processes), int(index)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(address, num_processes=processes, process_id=index)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import lox  # noqa: E402
import lox.loggers  # noqa: E402

mesh = jax.make_mesh((2 * processes,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
host = np.arange(4 * processes, dtype=np.float32)
x = jax.make_array_from_callback(host.shape, NamedSharding(mesh, P("d")), lambda place: host[place])


@jax.jit
def whole(x):
    """Records of a number that all have, and of a value of which each process has a part."""

    def body(c, i):
        c = c + 1
        lox.log({"mean": c.mean(), "c": c}, step=i)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


@jax.jit
def on_devices(x):
    def local(x):
        def body(c, i):
            c = c + 1
            lox.log({"mean": jax.lax.pmean(c.mean(), "d"), "own": c.sum()}, step=i)
            return c, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    return jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)


def everything():
    """Each way to deliver, to a run of its own."""
    ways = [
        lambda logger, state: logger.spool(whole, state),
        lambda logger, state: jax.jit(logger.spool(whole, state)),
        lambda logger, state: logger.tap(whole, state),
        lambda logger, state: jax.jit(logger.tap(whole, state)),
        lambda logger, state: logger.spool(on_devices, state),
        lambda logger, state: logger.tap(on_devices, state),
    ]
    with lox.loggers.create("save", path=folder) as logger:
        for number, way in enumerate(ways):
            jax.block_until_ready(way(logger, logger.init(jax.random.key(number)))(x))
        print("worker:", "runs", [run.process_index for run in logger.runs])


def each_its_own():
    with lox.loggers.create("save", path=folder, processes="all") as logger:
        state = logger.init(jax.random.key(0))
        logger.spool(whole, state)(x)  # of a global value, each writes all
        logger.log(state, {"index": index})
        logger.tap(on_devices, logger.init(jax.random.key(1)))(x)  # of devices, each writes its own
        print("worker:", "runs", [(run.name, run.process_index) for run in logger.runs])


def refused():
    with lox.loggers.create("save", path=folder) as logger:
        state = logger.init(jax.random.key(0))
        try:
            logger.log(state, {"x": x})
        except lox.LoxError as error:
            print("worker:", "refused:", error)
        logger.log(state, {"mean": jax.jit(jnp.mean)(x)})


def others_stop_early():
    """Only process 0 goes on; it needs nobody to write."""
    with lox.loggers.create("save", path=folder) as logger:
        state = logger.init(jax.random.key(0))
        jax.block_until_ready(logger.spool(whole, state)(x))
        if index != 0:
            print("worker:", "stops")
            sys.exit(0)
        time.sleep(1)
        for i in range(3, 50):
            logger.log(state, {"mean": float(i)}, step=i)


def the_writer_fails():
    """Process 0 dies of an exception of its own; what it logged is there, and the others end."""
    logger = lox.loggers.create("save", path=folder)
    state = logger.init(jax.random.key(0))
    jax.block_until_ready(logger.tap(whole, state)(x))
    if index == 0:
        raise RuntimeError("my own mistake")


globals()[scenario]()
