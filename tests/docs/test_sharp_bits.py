"""The program that XLA does not compile, on the page about sharp bits: it still fails, and the ways out work."""

import jax
import jax.numpy as jnp
import pytest

import lox
from tests.packaging.wheels import ROOT

PAGE = (ROOT / "docs" / "sharp-bits.md").read_text()
WEIGHTS = jnp.ones((64, 64)) / 64


def layer(w):
    h = jnp.tanh(w @ w)
    lox.log({"mean": h.mean()})
    return h


def layer_and_sum(w):
    h = jnp.tanh(w @ w)
    lox.log({"mean": h.mean()})
    return h, h.sum()


def ignore(logs):
    del logs


def test_the_page_shows_this_program():
    for line in ("h = jnp.tanh(w @ w)", 'lox.log({"mean": h.mean()})', "return h  "):
        assert line in PAGE


@pytest.mark.skipif(not (0, 10) <= jax.__version_info__ < (0, 13), reason="the page is about JAX 0.10 to 0.12")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only XLA for the CPU fails")
def test_a_tapped_layer_does_not_compile():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"IsDead\(\) .* is live and cannot be removed"):
        jax.block_until_ready(jax.jit(lox.tap(layer, ignore))(WEIGHTS))


@pytest.mark.parametrize(
    "transformed",
    [
        lox.tap(layer_and_sum, ignore),
        lox.tap(layer, ignore, ordered=True),
        lox.spool(layer),
    ],
    ids=["another result", "ordered", "spool"],
)
def test_the_ways_out_compile(transformed):
    jax.block_until_ready(jax.jit(transformed)(WEIGHTS))
    jax.effects_barrier()
