"""Small values travel packed, bit for bit, in words as wide as the widest of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._storage.words import Layout

KINDS = {
    "bools": (jnp.bool_, jnp.bool_, jnp.bool_),
    "bytes": (jnp.int8, jnp.uint8, jnp.bool_),
    "halves": (jnp.bfloat16, jnp.float16, jnp.int16),
    "halves and bytes": (jnp.bfloat16, jnp.int8, jnp.bool_),
    "words": (jnp.float32, jnp.int32, jnp.uint32),
    "of each width": (jnp.complex64, jnp.float32, jnp.float16, jnp.uint8, jnp.bool_),
}
WIDTHS = {"bools": 1, "bytes": 1, "halves": 2, "halves and bytes": 2, "words": 4, "of each width": 4}

each_kind = pytest.mark.parametrize("kind", KINDS)
turned_or_not = pytest.mark.parametrize("turned", [True, False], ids=["turned", "as they are"])


def values(kind, length=5):
    """For each dtype a scalar and a vector, with leading axis ``length``: both ends of its range, and more."""
    bits = np.random.default_rng(0).integers(0, 2**32, (length, 4, len(KINDS[kind])), np.uint32)
    bits[:2] = np.array([0, 2**32 - 1], np.uint32)[:, None, None]
    leaves = []
    for i, dtype in enumerate(KINDS[kind]):
        if dtype == jnp.complex64:
            column = jax.lax.complex(*jnp.asarray(bits[..., i].astype(np.float32))[None].repeat(2, 0))
        elif jnp.issubdtype(dtype, jnp.floating):
            column = jnp.asarray(bits[..., i] % 1000).astype(dtype)
        elif dtype == jnp.bool_:
            column = jnp.asarray(bits[..., i] % 2 == 1)
        else:
            column = jnp.asarray(bits[..., i].astype(np.dtype(dtype)))
        leaves += [column[:, 0], column[:, 1:]]
    return leaves


@pytest.mark.every(2)
@each_kind
@turned_or_not
def test_what_is_packed_comes_back_bit_for_bit(kind, turned):
    rows = values(kind)
    layout = Layout.of([row[0] for row in rows], 64, turned=turned)
    (words,) = jax.vmap(layout.pack)(rows)
    assert words.dtype.itemsize == WIDTHS[kind]
    for back in (layout.unpack([words]), layout.unpack_numpy([np.asarray(words)])):
        for found, expected in zip(back, rows, strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@each_kind
@pytest.mark.parametrize("options", [{}, {"batch": 2}], ids=["one by one", "batches"])
def test_spool_and_tap_keep_narrow_values(kind, options):
    rows = values(kind)

    def f(rows):
        def body(carry, leaves):
            lox.log({f"v{i}": leaf[None] for i, leaf in enumerate(leaves)})
            return carry, None

        return jax.lax.scan(body, 0.0, rows)[0]

    def check(logs):
        for i, expected in enumerate(rows):
            np.testing.assert_array_equal(np.asarray(logs[f"v{i}"])[:, 0], np.asarray(expected))

    check(jax.jit(lox.spool(f))(rows)[1])
    received = []
    jax.jit(lox.tap(f, received.append, **options))(rows)
    jax.effects_barrier()
    delivered = [logs.table() for logs in received]
    check({key: np.concatenate([np.asarray(logs[key]) for logs in delivered]) for key in delivered[0]})
