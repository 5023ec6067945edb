"""An ODE solve that logs inside the vector field: where the adaptive solver evaluates it, and how often.

The solver's loop has no fixed number of steps, so only the last n records are kept, and all of them are counted.

    pip install diffrax
    python examples/ode_diffrax.py
"""

import argparse
import sys

import jax
import jax.numpy as jnp

import lox

try:
    import diffrax
except ImportError:
    print("skipped: this example needs diffrax (pip install diffrax)")
    sys.exit(0)


def solve(stiffness, end):
    """The van der Pol oscillator."""

    def field(t, y, stiffness):
        position, velocity = y
        lox.log({"field/velocity": velocity}, t=t)
        lox.log({"field/calls": jnp.ones((), jnp.int32)}, reduce="sum")
        return velocity, stiffness * (1 - position**2) * velocity - position

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=end,
        dt0=0.01,
        y0=(jnp.float32(2.0), jnp.float32(0.0)),
        args=stiffness,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=4096,
    )
    lox.log({"solver/steps": solution.stats["num_steps"]})
    return solution.ys[0][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--end", type=float, default=20.0)
    parser.add_argument("--capacity", type=int, default=2048)
    options = parser.parse_args()

    stiffness = jnp.array([0.5, 2.0, 8.0])
    spooled = lox.spool(solve, capacity=options.capacity)
    # diffrax's loop goes on for lanes that are done, but each lane has only the records of its own steps.
    _, logs = jax.jit(jax.vmap(lambda mu: spooled(mu, options.end)))(stiffness)
    for lane, mu in enumerate(stiffness):
        one = jax.tree.map(lambda leaf, lane=lane: leaf[lane], logs).trim()
        times = one.t["field/velocity"]
        print(
            f"stiffness {mu:4.1f}: {one['solver/steps']:4} steps, {one['field/calls']:5} calls of the field, "
            f"{len(times)} kept, from t = {times[0]:.2f} to {times[-1]:.2f}, "
            f"fastest {jnp.abs(one['field/velocity']).max():.2f}"
        )


if __name__ == "__main__":
    main()
