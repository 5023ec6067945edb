"""Every row reaches the file: any order, any number of step axes, any number of runs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers.kinds import KindError
from lox.wandb import WandbKeyError
from tests.wandb.offline import file_of, metrics, rows


def table(values: dict, steps: dict) -> lox.logdict:
    return lox.logdict(values, steps=steps, stacked=values)


def lane(tree, number):
    return jax.tree.map(lambda leaf: leaf[number], tree)


def test_a_thousand_shuffled_rows_on_three_axes_in_sixteen_runs(make):
    logger = make()
    state = jax.vmap(logger.init)(jax.random.split(jax.random.key(1), 16))
    rng = np.random.default_rng(0)
    order = rng.permutation(1000)
    loss = rng.normal(size=(16, 1000)).astype(np.float32)
    accuracy = rng.normal(size=(16, 1000)).astype(np.float32)
    regret = rng.integers(-(2**31), 2**31 - 1, size=(16, 1000), dtype=np.int32)

    def send(state, loss, accuracy, regret):
        logs = {"train/loss": loss, "eval/accuracy": accuracy, "regret": regret}
        steps = {"step": {"train/loss": order}, "epoch": {"eval/accuracy": order // 2}}
        steps["episode"] = {"regret": order * 3}
        logger.log(state, table(logs, steps))

    jax.jit(jax.vmap(send))(state, loss, accuracy, regret)
    paths = [file_of(run) for run in logger.runs]
    logger.close()

    assert len(set(paths)) == 16
    for number, path in enumerate(paths):
        found = rows(path)
        assert [(row["step"], row["train/loss"]) for row in found if "step" in row] == list(
            zip(order.tolist(), loss[number].tolist(), strict=True)
        )
        assert sorted((row["epoch"], row["eval/accuracy"]) for row in found if "epoch" in row) == sorted(
            zip((order // 2).tolist(), accuracy[number].tolist(), strict=True)
        )
        assert [(row["episode"], row["regret"]) for row in found if "episode" in row] == list(
            zip((order * 3).tolist(), regret[number].tolist(), strict=True)
        )
        assert len(found) == 3000


def test_each_key_is_declared_to_belong_to_its_axis(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"loss": 1.0, "a.b": 2.0}, step=3, epoch=0)
    logger.log(state, {"return": 1.0}, episode=2)
    logger.log(state, {"alone": 1.0})
    (run,) = logger.runs
    logger.close()

    declared = metrics(file_of(run))
    assert {name: metric.step_metric for name, metric in declared.items()} == {
        "step": "",
        "epoch": "",
        "episode": "",
        "loss": "step",
        "a\\.b": "step",
        "return": "episode",
    }
    assert sorted(rows(file_of(run)), key=len) == [
        {"alone": 1},
        {"return": 1, "episode": 2},
        {"loss": 1, "a.b": 2, "step": 3, "epoch": 0},
    ]


def test_keys_of_equal_steps_share_a_row_also_across_writes(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    for step in range(3):
        logger.log(state, {"loss": step * 1.0}, step=step)
        logger.log(state, {"return": step * 2.0}, episode=step)  # another axis between the two
        logger.log(state, {"accuracy": step * 3.0}, step=step)
    (run,) = logger.runs
    logger.close()
    found = rows(file_of(run))
    assert [row for row in found if "step" in row] == [
        {"step": step, "loss": step, "accuracy": step * 3} for step in range(3)
    ]
    assert [row for row in found if "episode" in row] == [{"episode": step, "return": step * 2} for step in range(3)]


def test_batches_of_one_site_after_the_other_share_rows(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    for begin in (0, 4):
        steps = np.arange(begin, begin + 4)
        logger.log(state, table({"a": steps * 10}, {"step": {"a": steps}}))
        logger.log(state, table({"b": steps * 100}, {"step": {"b": steps}}))
    (run,) = logger.runs
    logger.close()
    assert rows(file_of(run)) == [{"step": step, "a": step * 10, "b": step * 100} for step in range(8)]


def test_a_step_that_comes_again_is_another_row(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    steps = np.array([5, 5, 3, 5])
    logger.log(state, table({"a": np.arange(4), "b": np.arange(4) * 10}, {"step": {"a": steps, "b": steps}}))
    logger.log(state, {"a": 7}, step=5)
    logger.log(state, {"a": 8}, step=5)
    (run,) = logger.runs
    logger.close()
    together = [{"step": step, "a": i, "b": i * 10} for i, step in enumerate([5, 5, 3, 5])]
    assert rows(file_of(run)) == [*together, {"step": 5, "a": 7}, {"step": 5, "a": 8}]


def test_without_steps_rows_are_merged_by_record_number(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, table({"a": np.arange(3), "b": np.arange(2)}, {}))
    logger.log(state, {"a": 9})
    (run,) = logger.runs
    logger.close()
    assert rows(file_of(run)) == [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 2}, {"a": 9}]


def test_numbers_come_back_as_they_went(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    values = {
        "nan": float("nan"),
        "inf": float("inf"),
        "minus_inf": -float("inf"),
        "tiny": np.float32(1e-45),
        "third": np.float32(1 / 3),
        "int": np.int32(-(2**31)),
        "uint": np.uint32(2**32 - 1),
        "bool": True,
        "half": jnp.bfloat16(0.1),
    }
    logger.log(state, {**values, "complex": 1 - 2j, "nested": {"a": 1, "b": (2, 3)}}, step=0)
    (run,) = logger.runs
    logger.close()
    (row,) = rows(file_of(run))
    assert math.isnan(row.pop("nan"))
    assert row == {
        "step": 0,
        "inf": math.inf,
        "minus_inf": -math.inf,
        "tiny": float(np.float32(1e-45)),
        "third": float(np.float32(1 / 3)),
        "int": -(2**31),
        "uint": 2**32 - 1,
        "bool": 1,
        "half": float(jnp.bfloat16(0.1)),
        "complex/real": 1,
        "complex/imag": -2,
        "nested/a": 1,
        "nested/b/0": 2,
        "nested/b/1": 3,
    }


def test_a_step_logged_as_a_value_too_is_there_once(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"epoch": 3, "loss": 1.0}, epoch=3)
    (run,) = logger.runs
    logger.close()
    assert rows(file_of(run)) == [{"epoch": 3, "loss": 1}]


def test_one_name_for_a_step_axis_and_other_values_is_an_error(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"epoch": 4, "loss": 1.0}, epoch=3)
    with pytest.raises(WandbKeyError, match="'epoch' is both a step axis"):
        logger.flush()


@pytest.mark.parametrize(("values", "steps"), [({"_loss": 1.0}, {}), ({"loss": 1.0}, {"_step": 1}), ({"": 1.0}, {})])
def test_reserved_names_are_refused_at_once(make, values, steps):
    logger = make()
    state = logger.init(jax.random.key(0))
    with pytest.raises(WandbKeyError, match="underscore|empty name"):
        logger.log(state, values, **steps)


def test_reserved_names_are_refused_while_the_program_is_traced(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    ran = []

    @jax.jit
    def train(state, x):
        jax.debug.callback(lambda: ran.append(True))
        logger.log(state, {"_x": x})
        return x

    with pytest.raises(WandbKeyError, match="'_x' begins with an underscore"):
        train(state, 1.0)
    assert not ran


def test_two_keys_with_one_name_are_an_error(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"a": {"b": 1.0}, "a/b": 2.0})
    with pytest.raises(KindError, match="'a' and 'a/b'"):
        logger.flush()


def test_keys_with_a_star_are_no_patterns(make):
    logger = make()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"*": 1.0, "a*b": 2.0, "a*": 3.0}, step=0)
    (run,) = logger.runs
    logger.close()
    assert rows(file_of(run)) == [{"step": 0, "*": 1, "a*b": 2, "a*": 3}]


def test_nothing_is_lost_when_the_queue_is_full(make):
    logger = make(queue_size=1)
    state = logger.init(jax.random.key(0))
    for step in range(200):
        logger.log(state, {"a": step}, step=step)
    (run,) = logger.runs
    logger.close()
    assert rows(file_of(run)) == [{"a": step, "step": step} for step in range(200)]
