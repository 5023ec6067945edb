"""`logs.to_pandas()`: the rows of `logs.rows()`, and of logs with lanes those of each lane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

pandas = pytest.importorskip("pandas")


def rows_of(logs):
    """What `rows()` says, as pandas would have it."""
    return pandas.DataFrame([{**steps, **values} for steps, values in logs.rows()])


def loop(x):
    def step(total, i):
        lox.log({"total": total + x, "pair": jnp.stack([x, total])}, step=i, epoch=i // 2)
        lox.log({"late": total}, step=2 * i, epoch=i)
        lox.log({"free": i})
        return total + x, None

    lox.log({"rate": x}, step=-1, epoch=0)
    return jax.lax.scan(step, x, jnp.arange(4))[0]


def backwards(x):
    jax.lax.scan(lambda c, i: (c, lox.log({"x": x * i}, step=i)), 0, jnp.arange(3), reverse=True)
    jax.lax.map(lambda i: lox.log({"y": i}, step=i % 2), jnp.arange(4))


def assert_same_frame(found, expected):
    assert list(found.columns) == list(expected.columns)
    assert len(found) == len(expected)
    for column in expected:
        for one, other in zip(found[column], expected[column], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("program", [loop, backwards])
def test_a_frame_has_the_rows_of_rows(program):
    logs = lox.spool(program)(jnp.float32(2.0))[1]
    assert_same_frame(logs.to_pandas(), rows_of(logs))


@pytest.mark.parametrize("program", [loop, backwards])
@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
def test_lanes_are_a_column(program, lanes):
    """Also where there are as many lanes as records."""
    xs = jnp.arange(1.0, lanes + 1)
    logs = jax.vmap(lox.spool(program))(xs)[1]
    frame = logs.to_pandas()
    assert frame.columns[0] == "lane"
    for lane, x in enumerate(xs):
        mine = frame[frame["lane"] == lane].drop(columns="lane").reset_index(drop=True)
        assert_same_frame(mine, rows_of(lox.spool(program)(x)[1]))


def test_nested_lanes_of_different_numbers_of_records():
    def some(x):
        jax.lax.map(lambda i: lox.log({"x": x + i}, step=i, where=i < x), jnp.arange(2))

    frame = jax.vmap(jax.vmap(lox.spool(some)))(jnp.arange(4.0).reshape(2, 2))[1].to_pandas()
    assert frame.columns.tolist() == ["lane0", "lane1", "step", "x"]
    assert frame[["lane0", "lane1", "step"]].to_numpy().tolist() == [
        [0, 1, 0],
        [1, 0, 0],
        [1, 0, 1],
        [1, 1, 0],
        [1, 1, 1],
    ]
    assert frame["x"].tolist() == [1.0, 2.0, 3.0, 3.0, 4.0]


def test_lanes_of_one_record_each():
    frame = jax.vmap(lox.spool(lambda x: lox.log({"x": x}, step=7)))(jnp.arange(3.0))[1].to_pandas()
    assert frame.to_numpy().tolist() == [[0, 7, 0.0], [1, 7, 1.0], [2, 7, 2.0]]


def test_where_nothing_tells_the_lanes_they_can_be_said():
    logs = jax.vmap(lox.spool(lambda x: lox.log({"x": x})))(jnp.arange(3.0))[1]
    assert logs.to_pandas()["x"][0].tolist() == [0.0, 1.0, 2.0]  # as a record of a vector
    assert logs.to_pandas(lanes=1).to_numpy().tolist() == [[0, 0.0], [1, 1.0], [2, 2.0]]


def test_a_key_called_lane_is_an_error():
    logs = jax.vmap(lox.spool(lambda x: lox.log({"lane": x}, step=0)))(jnp.arange(3.0))[1]
    with pytest.raises(lox.LoxError, match="needs the column 'lane' for the lanes: rename that key or step"):
        logs.to_pandas()


def test_no_records_are_an_empty_frame():
    assert len(lox.logdict().to_pandas()) == 0


def test_small_dtypes_are_numbers():
    logs = lox.logdict({"x": jnp.arange(3, dtype=jnp.bfloat16)}, stacked=["x"])
    assert logs.to_pandas()["x"].mean() == 1.0
