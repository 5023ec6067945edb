"""Which values share an event, at which step and when."""

from __future__ import annotations

import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import RecordError
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import join, run_folders, scalars, table, value_events


def event_tags(folder):
    return [(event.step, [value.tag for value in event.summary.value]) for event in value_events(folder)]


def test_all_values_of_a_step_are_one_event(write):
    folder = write(table({"loss": np.arange(3.0), "acc": np.arange(3.0)}, step=[10, 20, 30]))
    assert event_tags(folder) == [(10, ["loss", "acc"]), (20, ["loss", "acc"]), (30, ["loss", "acc"])]


def test_keys_with_some_steps_in_common_share_those_events(write):
    train = table({"loss": np.arange(4.0)}, step=[0, 1, 2, 3])
    evaluation = table({"score": np.array([10.0, 20.0])}, step=[1, 5])
    folder = write(join(train, evaluation))
    assert event_tags(folder) == [(0, ["loss"]), (1, ["loss", "score"]), (2, ["loss"]), (3, ["loss"]), (5, ["score"])]
    assert scalars(folder) == {"loss": [(0, 0), (1, 1), (2, 2), (3, 3)], "score": [(1, 10), (5, 20)]}


def test_equal_steps_in_different_arrays_share_events(write):
    folder = write(join(table({"a": np.arange(2.0)}, step=[0, 1]), table({"b": np.arange(2.0)}, step=[0, 1])))
    assert event_tags(folder) == [(0, ["a", "b"]), (1, ["a", "b"])]


def test_a_step_that_repeats_keeps_all_its_values(write):
    a = table({"a": np.array([1.0, 2.0, 3.0])}, step=[7, 7, 8])
    b = table({"b": np.array([4.0, 5.0])}, step=[7, 8])
    folder = write(join(a, b))
    assert scalars(folder) == {"a": [(7, 1), (7, 2), (8, 3)], "b": [(7, 4), (8, 5)]}
    assert event_tags(folder) == [(7, ["a", "b"]), (7, ["a"]), (8, ["a", "b"])]


def test_steps_out_of_order_keep_their_order(write):
    a = table({"a": np.array([1.0, 2.0, 3.0])}, step=[5, 1, 3])
    b = table({"b": np.array([4.0, 5.0])}, step=[3, 9])
    folder = write(join(a, b))
    assert [event.step for event in value_events(folder)] == [5, 1, 3, 9]
    assert scalars(folder) == {"a": [(5, 1), (1, 2), (3, 3)], "b": [(3, 4), (9, 5)]}


def test_many_patterns_of_keys_lose_nothing(write):
    random = np.random.default_rng(0)
    expected = {}
    parts = []
    for number in range(6):
        steps = np.flatnonzero(random.random(200) < 0.5)
        values = random.normal(size=len(steps)).astype(np.float32)
        expected[f"key{number}"] = list(zip(steps.tolist(), values.tolist(), strict=True))
        parts.append(table({f"key{number}": values}, step=steps))
    folder = write(join(*parts))
    assert scalars(folder) == expected
    assert max(Counter(event.step for event in value_events(folder)).values()) == 1


def test_other_axes_are_scalars_of_their_own(write):
    folder = write(
        table({"loss": np.arange(3.0)}, step=[0, 1, 2], episode=[0, 0, 1], lr=np.float32([0.5, 0.25, 0.125]))
    )
    found = scalars(folder)
    assert found["episode"] == [(0, 0), (1, 0), (2, 1)]
    assert found["lr"] == [(0, 0.5), (1, 0.25), (2, 0.125)]
    assert "step" not in found


def test_records_of_one_step_but_other_episodes_stay_apart(write):
    a = table({"a": np.array([1.0])}, step=[5], episode=[1])
    b = table({"b": np.array([2.0])}, step=[5], episode=[2])
    folder = write(join(a, b))
    assert event_tags(folder) == [(5, ["a", "episode"]), (5, ["b", "episode"])]
    assert scalars(folder)["episode"] == [(5, 1), (5, 2)]


def test_step_axis_chooses_the_axis(write):
    folder = write(table({"loss": np.arange(2.0)}, step=[0, 1], update=[100, 200]), step_axis="update")
    assert scalars(folder) == {"loss": [(100, 0), (200, 1)], "step": [(100, 0), (200, 1)]}


def test_of_several_step_axes_each_key_uses_the_first_it_has(write):
    logs = join(table({"loss": np.arange(2.0)}, update=[3, 4]), table({"return": np.arange(2.0)}, episode=[8, 9]))
    folder = write(logs, step_axis=("update", "episode"))
    assert scalars(folder) == {"loss": [(3, 0), (4, 1)], "return": [(8, 0), (9, 1)]}


def test_a_missing_step_axis_is_an_error_that_names_key_and_axes(write):
    with pytest.raises(
        RecordError, match=r"'loss' has no step axis 'step'; it was logged with 'update', 'epoch'.*step_axis='update'"
    ):
        write(table({"loss": np.arange(2.0)}, update=[0, 1], epoch=[0, 0]))


def test_the_only_axis_of_a_key_is_its_step(write):
    logs = join(table({"loss": np.arange(2.0)}, step=[3, 4]), table({"eval": np.arange(2.0)}, epoch=[8, 9]))
    assert scalars(write(logs)) == {"loss": [(3, 0), (4, 1)], "eval": [(8, 0), (9, 1)]}


def test_the_only_axis_of_lanes_is_their_step(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        jax.vmap(lambda state, x: logger.tap(lambda x: lox.log({"eval": x}, epoch=7), state)(x))(
            states, jnp.arange(2.0)
        )
    assert sorted(scalars(folder)["eval"] for folder in run_folders(tmp_path)) == [[(7, 0)], [(7, 1)]]


def test_without_steps_each_key_counts(write):
    first = table({"a": np.arange(3.0)})
    second = table({"a": np.arange(2.0), "b": np.arange(2.0)})
    folder = write(first, second)
    assert scalars(folder) == {"a": [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)], "b": [(0, 0), (1, 1)]}


def test_keys_with_and_without_steps_in_one_delivery(write):
    folder = write(join(table({"a": np.arange(2.0)}, step=[50, 60]), table({"b": np.arange(2.0)})))
    assert scalars(folder) == {"a": [(50, 0), (60, 1)], "b": [(0, 0), (1, 1)]}


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64, np.float32, bool])
def test_steps_of_every_whole_dtype(write, dtype):
    folder = write(table({"a": np.arange(2.0)}, step=np.array([0, 1], dtype)))
    assert scalars(folder) == {"a": [(0, 0), (1, 1)]}


@pytest.mark.parametrize("step", [np.float32(0.5), np.float64("nan"), np.uint64(2**63), np.float64(1e19)])
def test_a_step_that_is_no_whole_number_is_an_error_that_names_the_key(write, step):
    with pytest.raises(RecordError, match="the step axis 'step' of 'loss' holds .* whole numbers"):
        write(table({"loss": np.zeros(1)}, step=np.array([step])))


def test_steps_below_zero_and_beyond_32_bits(write):
    steps = [-(2**40), -1, 0, 2**31, 2**62]
    folder = write(table({"a": np.arange(5.0)}, step=steps))
    assert [step for step, _ in scalars(folder)["a"]] == steps


def test_a_key_named_like_another_axis_is_an_error(write):
    with pytest.raises(RecordError, match="'episode' is both a step axis and the name of a value"):
        write(table({"episode": np.arange(2.0), "loss": np.arange(2.0)}, step=[0, 1], episode=[0, 1]))


def test_wall_times_rise_with_the_rows(write):
    before = time.time()
    batches = [table({"a": np.zeros(5000)}, step=np.arange(5000) + 5000 * i) for i in range(3)]
    folder = write(*batches, table({"b": np.zeros(10)}))
    times = np.array([event.wall_time for event in value_events(folder)])
    assert len(times) == 15010
    assert (np.diff(times) > 0).all()
    assert before <= times[0]
    assert times[-1] <= time.time() + 1


def test_an_empty_delivery_writes_nothing(write):
    folder = write(table({"a": np.zeros(0)}, step=np.zeros(0, int)), table({"b": np.zeros((0, 3))}))
    assert value_events(folder) == []
