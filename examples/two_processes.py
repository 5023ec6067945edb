"""Trains one model on two processes, as on a cluster of two machines, and logs it once.

Each process has half of the data and runs this same program. Process 0 writes the loss, which both processes compute
together, and the norm of the gradient on each device. With `--each`, every process also writes its own run, here with
the mean of its half of the data.

    python examples/two_processes.py                    # starts both processes, here
    python examples/two_processes.py --processes 4

On a cluster, the launcher (srun, mpirun, a TPU pod) starts the program on every machine, and
`jax.distributed.initialize()` needs no arguments.
"""

import argparse
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lox
import lox.loggers


def launch(options):
    """Starts the processes on this machine, and waits for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--address", address, "--index", str(index)])
        for index in range(options.processes)
    ]
    return max(abs(process.wait()) for process in started)


def global_data(mesh, points):
    """Each process makes only the rows of its own devices."""

    def rows(place):
        x = np.arange(points, dtype=np.float32)[place[0]] / points
        return np.stack([x, np.ones_like(x)], axis=1)[:, place[1]]

    return jax.make_array_from_callback((points, 2), NamedSharding(mesh, P("data")), rows)


def train(mesh, x, steps):
    def update(w, x):
        """On one device, with its rows of the data."""
        y = 3 * x[:, 0] - 1
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        lox.log({"norm/by_device": jnp.linalg.norm(gradient)})
        return w - 0.5 * jax.lax.pmean(gradient, "data"), jax.lax.pmean(loss, "data")

    # Every device starts from the same weights and computes its own gradient. Only pmean combines them.
    on_devices = jax.shard_map(update, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False)

    def step(w, i):
        w, loss = on_devices(w, x)
        lox.log({"loss": loss}, step=i)
        return w, None

    return jax.lax.scan(step, jnp.zeros(2), jnp.arange(steps))[0]


def main(options):
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(options.address, num_processes=options.processes, process_id=options.index)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    x = global_data(mesh, 64)

    with lox.loggers.create("save", path=options.path, if_exists="replace") as logger:
        state = logger.init(jax.random.key(0))  # process 0 opens the run; the other processes write nothing
        w = logger.spool(jax.jit(lambda x: train(mesh, x, options.steps)), state)(x)
    if options.each:
        with lox.loggers.create("save", path=options.path, if_exists="replace", processes="all") as logger:
            own = np.concatenate([np.asarray(shard.data) for shard in x.addressable_shards])
            logger.log(logger.init(jax.random.key(1)), {"mean": own[:, 0].mean()})

    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {jax.device_count()} devices, w = {w[0]:.2f}, {w[1]:.2f}")
        logs = lox.loggers.load(options.path)["0000000000000000"]
        print(f"loss {logs['loss'][0]:.3f} -> {logs['loss'][-1]:.3f}, gradient norms {logs['norm/by_device'].shape}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--path", default="runs/examples/two_processes")
    parser.add_argument("--each", action="store_true", help="every process also writes a run of its own")
    parser.add_argument("--address", help="where process 0 listens; set by the launcher")
    parser.add_argument("--index", type=int, help="which process this is; set by the launcher")
    given = parser.parse_args()
    if given.address is None:
        sys.exit(launch(given))
    main(given)
