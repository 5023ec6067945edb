# %% [markdown]
# # A plot that grows while the program runs
#
# Open this file as a notebook (VS Code, Spyder and jupytext recognise the `# %%` cells), or run it as a script, which
# writes the plot to `live.png` again and again.

# %%
import argparse
import sys
import time

import jax
import jax.numpy as jnp
import matplotlib

NOTEBOOK = "ipykernel" in sys.modules
if not NOTEBOOK:
    matplotlib.use("Agg")  # no window
import matplotlib.pyplot as plt

import lox

# %% [markdown]
# The program itself does not know about plots.


# %%
def train(key, steps):
    def step(weights, i):
        noise = jax.random.normal(jax.random.fold_in(key, i), weights.shape)
        gradient = weights - 1 + noise
        weights = weights - 0.01 * gradient
        lox.log({"distance": jnp.linalg.norm(weights - 1)}, step=i)
        return weights, None

    return jax.lax.scan(step, jnp.zeros(64), jnp.arange(steps))[0]


# %% [markdown]
# A callback gets numpy values, whole batches of them with `batch=`. It must not call JAX; matplotlib is fine.


# %%
class LivePlot:
    def __init__(self, key, file="live.png", seconds=0.5):
        self.key, self.file, self.seconds = key, file, seconds
        self.steps, self.values, self.drawn = [], [], 0.0
        self.figure, self.axes = plt.subplots()
        (self.line,) = self.axes.plot([], [])
        self.axes.set(xlabel="step", ylabel=key)
        if NOTEBOOK:
            from IPython.display import display

            self.handle = display(self.figure, display_id=True)

    def __call__(self, logs):
        self.steps += logs.step[self.key].tolist()
        self.values += logs[self.key].tolist()
        if time.monotonic() - self.drawn > self.seconds:
            self.draw()

    def draw(self):
        self.line.set_data(self.steps, self.values)
        self.axes.relim()
        self.axes.autoscale_view()
        self.drawn = time.monotonic()
        if NOTEBOOK:
            self.handle.update(self.figure)
        else:
            self.figure.savefig(self.file)


# %%
def main(steps=50_000, batch=500):
    plot = LivePlot("distance")
    jax.jit(lox.tap(train, plot, batch=batch), static_argnums=1)(jax.random.key(0), steps)
    jax.effects_barrier()  # all records have arrived
    plot.draw()
    print(f"{len(plot.values)} records plotted, the last one {plot.values[-1]:.3f}")


# %%
if __name__ == "__main__":
    if NOTEBOOK:
        main()
    else:
        parser = argparse.ArgumentParser(description="A plot that grows while the program runs.")
        parser.add_argument("--steps", type=int, default=50_000)
        parser.add_argument("--batch", type=int, default=500)
        main(**vars(parser.parse_args()))
