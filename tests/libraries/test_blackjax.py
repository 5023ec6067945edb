"""A sampler of blackjax: marks in the log density and in the loop around it, over chains."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, lane

blackjax = pytest.importorskip("blackjax", reason="blackjax is not installed: hatch run libs:test")

STEPS, CHAINS = 6, 3


def log_density(x: Any) -> Any:
    return -0.5 * jnp.sum((x - 1.0) ** 2)


def chain(key: Any, *, algorithm: str, mark: bool) -> Any:
    """The last position, and by hand what the marks record: positions and whether a proposal was accepted."""

    def density(x: Any) -> Any:
        if mark:
            lox.log({"density/x": x}, reduce="count", tags="inner")
        return log_density(x)

    if algorithm == "nuts":
        kernel = blackjax.nuts(density, step_size=0.5, inverse_mass_matrix=jnp.ones(2))
    else:
        kernel = blackjax.hmc(density, step_size=0.5, inverse_mass_matrix=jnp.ones(2), num_integration_steps=3)

    def step(state: Any, key: Any) -> Any:
        state, info = kernel.step(key, state)
        if mark:
            lox.log({"position": state.position, "acceptance": info.acceptance_rate})
        return state, (state.position, info.acceptance_rate)

    last, (positions, acceptance) = jax.lax.scan(step, kernel.init(jnp.zeros(2)), jax.random.split(key, STEPS))
    return last.position, positions, acceptance


@pytest.mark.parametrize("algorithm", ["hmc", "nuts"])
def test_chains(algorithm: str) -> None:
    keys = jax.random.split(jax.random.key(0), CHAINS)
    plain = jax.jit(jax.vmap(lambda key: chain(key, algorithm=algorithm, mark=False)))(keys)
    spooled = lox.spool(lambda key: chain(key, algorithm=algorithm, mark=True))
    found, logs = jax.jit(jax.vmap(spooled))(keys)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-4)
    for i in range(CHAINS):
        mine = lane(logs, i)
        assert_rows(
            mine.filter(lambda key: key != "density/x"), {"position": plain[1][i], "acceptance": plain[2][i]}, 1e-4
        )
        assert int(mine["density/x"]) >= STEPS


def test_a_fixed_number_of_integration_steps_is_a_fixed_number_of_evaluations() -> None:
    key = jax.random.key(1)
    _, logs = lox.spool(lambda key: chain(key, algorithm="hmc", mark=True), tags="inner")(key)
    # One for the start, and at least one for each of the three leapfrog steps of every proposal.
    assert set(logs) == {"density/x"}
    assert (int(logs["density/x"]) - 1) % STEPS == 0
    assert int(logs["density/x"]) >= 1 + 3 * STEPS


def test_lanes_of_nuts_grow_trees_of_their_own() -> None:
    keys = jax.random.split(jax.random.key(2), 8)
    spooled = lox.spool(lambda key: chain(key, algorithm="nuts", mark=True), tags="inner")
    _, together = jax.jit(jax.vmap(spooled))(keys)
    alone = [int(spooled(key)[1]["density/x"]) for key in keys]
    assert [int(count) for count in together["density/x"]] == alone
    assert len(set(alone)) > 1
