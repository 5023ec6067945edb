"""logdict: a dict, a pytree, and what it knows about its records."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox import logdict
from tests.core.checks import assert_logs_are, assert_logs_equal


def losses() -> logdict:
    return logdict(
        {"loss": np.array([3.0, 2.0, 1.0]), "name": np.float32(7)},
        steps={"step": {"loss": np.array([0, 10, 20])}},
        stacked=["loss"],
    )


# --- a dict ----------------------------------------------------------------------------------------------------------


def test_it_is_a_dict():
    logs = losses()
    assert isinstance(logs, dict)
    assert list(logs) == ["loss", "name"]
    assert logs["name"] == 7
    assert "loss" in logs
    assert len(logs) == 2
    assert logs.get("none", 5) == 5
    assert logdict() == {}
    assert not logdict()


def test_steps_are_found_by_axis_and_as_attributes():
    logs = losses()
    assert logs.step["loss"].tolist() == [0, 10, 20]
    assert logs.steps == {"step": {"loss": logs.step["loss"]}}
    with pytest.raises(AttributeError, match=r"'epoch'.*\['step'\]"):
        _ = logs.epoch


def test_step_axes_with_the_names_of_methods_are_in_steps():
    def f(x):
        lox.log({"a": x}, update=1, keys=2, items=3, get=4, steps=5, reduce_=6)
        return x

    logs = lox.spool(f)(1.0)[1]
    assert {axis: int(by_key["a"]) for axis, by_key in logs.steps.items()} == {
        "update": 1,
        "keys": 2,
        "items": 3,
        "get": 4,
        "steps": 5,
        "reduce_": 6,
    }
    assert int(logs.reduce_["a"]) == 6
    assert list(logs.keys()) == ["a"]
    assert callable(logs.update)


def test_counts_are_those_of_the_rows_unless_told():
    assert losses().counts == {"loss": 3, "name": 1}
    assert logdict({"a": np.zeros(2)}, counts={"a": 9}, stacked=["a"]).counts == {"a": 9}


def test_deleting_a_key_deletes_its_steps_and_count():
    logs = losses()
    del logs["loss"]
    assert logs == {"name": 7}
    assert logs.steps == {}
    assert logs.counts == {"name": 1}
    assert logs.stacked == frozenset()
    with pytest.raises(KeyError):
        del logs["loss"]


def test_setting_a_key_replaces_its_record_and_steps():
    logs = losses()
    logs["loss"] = 5.0
    assert logs["loss"] == 5.0
    assert logs.counts["loss"] == 1
    assert "loss" not in logs.stacked
    assert logs.steps == {}


def test_dict_methods_that_change_it_keep_steps_and_counts_right():
    logs = losses()
    assert logs.pop("loss").tolist() == [3.0, 2.0, 1.0]
    assert logs.steps == {}
    assert logs.pop("none", 1) == 1
    logs.update({"other": 2.0})
    assert logs.counts == {"name": 1, "other": 1}
    assert logs.setdefault("third", 3.0) == 3.0
    assert logs.counts["third"] == 1
    assert logs.popitem() == ("third", 3.0)
    assert set(logs.counts) == {"name", "other"}
    logs.clear()
    assert logs == {}
    assert logs.counts == {}
    assert logs.steps == {}
    assert_prints(logs, "{}")


def test_copies_are_independent():
    for make in (lambda logs: logs.copy(), copy.copy, copy.deepcopy):
        logs = losses()
        other = make(logs)
        assert isinstance(other, logdict)
        assert_logs_equal(other, logs)
        del other["loss"]
        assert_logs_equal(logs, losses())


def test_it_can_be_pickled():
    assert_logs_equal(pickle.loads(pickle.dumps(losses())), losses())


# --- a pytree --------------------------------------------------------------------------------------------------------


def test_it_is_a_pytree_that_keeps_what_it_knows():
    doubled = jax.tree.map(lambda leaf: leaf * 2, losses())
    assert isinstance(doubled, logdict)
    assert doubled["loss"].tolist() == [6.0, 4.0, 2.0]
    assert doubled.step["loss"].tolist() == [0, 20, 40]
    assert doubled.counts == {"loss": 3, "name": 1}
    assert doubled.stacked == {"loss"}


def test_its_paths_name_the_keys():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(losses())]
    assert paths[:2] == ["['loss']", "['name']"]


def test_it_passes_through_jit_vmap_scan_and_cond():
    logs = jax.tree.map(jnp.asarray, losses())
    assert_logs_equal(jax.jit(lambda logs: logs)(logs), logs)
    assert_logs_equal(jax.lax.cond(True, lambda: logs, lambda: logs), logs)
    stacked = jax.vmap(lambda scale: jax.tree.map(lambda leaf: leaf * scale, logs))(jnp.arange(2))
    assert stacked["loss"].shape == (2, 3)
    assert_logs_equal(jax.lax.scan(lambda carry, _: (carry, None), logs, None, length=2)[0], logs)


def test_shared_steps_are_one_leaf():
    def f(xs):
        def body(i, x):
            lox.log({"a": x, "b": 2 * x, "c": 3 * x}, step=i)
            return i + 1, None

        return jax.lax.scan(body, 0, xs)[0]

    logs = lox.spool(f)(jnp.arange(4.0))[1]
    assert len(jax.tree.leaves(logs)) == 4
    assert logs.step["a"].tolist() == logs.step["c"].tolist() == [0, 1, 2, 3]


# --- printing --------------------------------------------------------------------------------------------------------


def assert_prints(logs, text):
    assert str(logs) == text
    assert repr(logs) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (np.array([0, 1, 2]), "[0, 1, 2]"),
        (jnp.float32(1.5), "1.5"),
        (1.0, "1.0"),
        (np.float32(1.0), "1.0"),
        (np.array([2.0, 4.0]), "[2., 4.]"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (np.array([True, False]), "[ True, False]"),
        (np.zeros((0,)), "[]"),
        (np.arange(1000.0), "float64[1000](0.0 to 999.0)"),
        (np.arange(100).reshape(10, 10), "int64[10,10](0 to 99)"),
        (np.full(100, np.nan), "float64[100](nan)"),
        (np.ones(100, np.complex64), "complex64[100]"),
        ({"w": np.array([1, 2]), "b": 3}, "{'w': [1, 2], 'b': 3}"),
    ],
)
def test_values_print_in_full_where_they_are_small_and_summarised_where_not(value, text):
    assert_prints(logdict({"v": value}), f"{{'v': {text}}}")


def test_large_arrays_of_small_dtypes_print():
    assert "bfloat16[100](1 to 1)" in str(logdict({"v": jnp.ones(100, jnp.bfloat16)}))
    assert "bool[100](False to True)" in str(logdict({"v": np.arange(100) > 50}))


def test_random_keys_print_their_type():
    assert str(logdict({"k": jax.random.key(0)})) == "{'k': key<fry>[]}"


def test_tracers_print_their_type():
    seen = []

    def f(x):
        seen.append(str(lox.log({"x": x, "n": 3})))
        return x

    jax.jit(f)(jnp.zeros((2, 3)))
    assert seen == ["{'x': float32[2,3], 'n': 3}"]


# --- combining -------------------------------------------------------------------------------------------------------


def test_adding_puts_records_in_sequence():
    first = losses()
    second = logdict({"loss": np.float64(0.5), "extra": 1}, steps={"step": {"loss": 30}})
    both = first + second
    assert list(both) == ["loss", "name", "extra"]
    assert both["loss"].tolist() == [3.0, 2.0, 1.0, 0.5]
    assert both.step["loss"].tolist() == [0, 10, 20, 30]
    assert both.counts == {"loss": 4, "name": 1, "extra": 1}
    assert both.stacked == {"loss"}
    assert_logs_equal(first, losses())


def test_adding_is_associative_and_has_a_neutral_element():
    a, b, c = losses(), logdict({"loss": np.float64(0.5)}, steps={"step": {"loss": 30}}), losses()
    assert_logs_equal((a + b) + c, a + (b + c))
    assert_logs_equal(a + logdict(), a)
    assert_logs_equal(logdict() + a, a)


def test_adding_different_records_is_an_error():
    with pytest.raises(lox.LoxError, match=r"'loss'.*step"):
        losses() + logdict({"loss": 1.0})
    with pytest.raises(lox.LoxError, match=r"'a'.*\(2,\).*\(3,\)"):
        logdict({"a": np.zeros(2)}) + logdict({"a": np.zeros(3)})
    with pytest.raises(lox.LoxError, match="'a'"):
        logdict({"a": {"x": 1.0}}) + logdict({"a": {"y": 1.0}})
    with pytest.raises(TypeError):
        losses() + {"loss": 1.0}


def test_adding_constants_with_traced_steps():
    def add(step):
        logs = lox.logdict({"a": np.float32(1.0)}, steps={"step": {"a": step}})
        return logs + logs

    both = jax.jit(add)(3)
    assert both["a"].tolist() == [1.0, 1.0]
    assert both.step["a"].tolist() == [3, 3]


def test_adding_works_in_jit():
    both = jax.jit(lambda a, b: a + b)(losses(), losses())
    assert both["loss"].tolist() == [3.0, 2.0, 1.0] * 2
    assert both["name"].tolist() == [7.0, 7.0]


def test_or_takes_the_right_one():
    both = losses() | logdict({"loss": 9.0, "new": 1.0})
    assert both == {"loss": 9.0, "name": 7, "new": 1.0}
    assert list(both) == ["loss", "name", "new"]
    assert both.steps == {}
    assert both.counts == {"loss": 1, "name": 1, "new": 1}
    assert isinstance(losses() | {"x": 1}, logdict)
    assert ({"x": 1, "loss": 0} | losses())["loss"].tolist() == [3.0, 2.0, 1.0]
    left = alias = losses()
    left |= {"name": 1}
    assert left["name"] == 1
    assert left.step["loss"].tolist() == [0, 10, 20]
    assert left is alias


# --- looking at records ----------------------------------------------------------------------------------------------


def test_filter_by_key_and_value():
    logs = losses()
    assert list(logs.filter(lambda key, value: np.ndim(value) > 0)) == [k for k in logs if np.ndim(logs[k]) > 0]
    assert list(logs.filter(lambda key, value: key == "loss")) == ["loss"]
    assert list(logs.filter(lambda key, wanted="loss": key == wanted)) == ["loss"]
    assert list(logs.filter(re.compile("lo").match)) == ["loss"]
    assert list(logs.filter({"loss": True, "name": False}.__getitem__)) == ["loss"]


def test_filter_and_prefix_keep_steps():
    logs = losses().filter(lambda key: key == "loss").prefix("train/")
    assert list(logs) == ["train/loss"]
    assert logs.step["train/loss"].tolist() == [0, 10, 20]
    assert logs.stacked == {"train/loss"}
    assert logs.counts == {"train/loss": 3}


@pytest.mark.parametrize("index", [slice(1), slice(1, 3), slice(None, None, 2), slice(-2, None), slice(None, None, -1)])
def test_slices_take_records_and_their_steps(index):
    logs = losses().slice[index]
    assert logs["loss"].tolist() == [3.0, 2.0, 1.0][index]
    assert logs.step["loss"].tolist() == [0, 10, 20][index]
    assert logs.counts["loss"] == len(logs["loss"])
    assert logs["name"] == 7


def test_an_index_takes_one_record():
    logs = losses().slice[-1]
    assert logs["loss"] == 1.0
    assert logs.step["loss"] == 20
    assert logs.stacked == frozenset()


def test_rows_merge_keys_of_equal_steps():
    logs = logdict(
        {"a": np.array([1, 2, 3]), "b": np.array([20, 30])},
        steps={"step": {"a": np.array([0, 1, 2]), "b": np.array([1, 2])}},
        stacked=["a", "b"],
    )
    rows = [({k: int(v) for k, v in s.items()}, {k: int(v) for k, v in r.items()}) for s, r in logs.rows()]
    assert rows == [({"step": 0}, {"a": 1}), ({"step": 1}, {"a": 2, "b": 20}), ({"step": 2}, {"a": 3, "b": 30})]


def test_rows_without_steps_merge_by_record_number():
    logs = logdict({"a": np.array([1, 2]), "b": 5, "c": {"x": np.array([7, 8])}}, stacked=["a", "c"])
    rows = [values for steps, values in logs.rows() if not steps]
    assert rows == [{"a": 1, "b": 5, "c": {"x": 7}}, {"a": 2, "c": {"x": 8}}]


def test_rows_with_other_axes_are_rows_of_their_own():
    logs = losses()
    rows = list(logs.rows())
    assert [steps for steps, _ in rows] == [{"step": 0}, {"step": 10}, {"step": 20}, {}]
    assert rows[-1][1] == {"name": 7}


def test_rows_of_repeated_and_falling_steps_keep_their_order():
    logs = logdict(
        {"a": np.array([1, 2, 3]), "b": np.array([4, 5, 6])},
        steps={"step": dict.fromkeys("ab", np.array([2, 1, 1]))},
        stacked=["a", "b"],
    )
    assert [(s["step"], v["a"], v["b"]) for s, v in logs.rows()] == [(2, 1, 4), (1, 2, 5), (1, 3, 6)]


def test_trim_drops_unused_rows():
    def f(x):
        jax.lax.scan(lambda c, v: (c, lox.log({"v": v}, where=v > 0, step=v * 10)["v"]), 0.0, x)
        return x

    logs = lox.spool(f)(jnp.array([1.0, -1.0, 2.0]))[1]
    assert logs["v"].tolist() == [1.0, 2.0, 0.0]
    assert int(logs.counts["v"]) == 2
    trimmed = logs.trim()
    assert_logs_are(trimmed, {"v": [1.0, 2.0]}, {"step": {"v": [10.0, 20.0]}})
    assert_logs_equal(trimmed.trim(), trimmed)


def test_table_is_numpy_with_a_record_axis_everywhere():
    table = jax.tree.map(jnp.asarray, losses()).table()
    assert table.stacked == {"loss", "name"}
    assert table["name"].tolist() == [7.0]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(table))


def test_asdict_is_plain():
    def f(x):
        lox.log({"scalar": x, "tree": {"v": jnp.arange(2)}, "key": jax.random.key(1)})
        return x

    plain = lox.spool(f)(1.5)[1].asdict()
    assert type(plain) is dict
    assert type(plain["scalar"]) is float
    assert type(plain["tree"]["v"]) is np.ndarray
    assert plain["key"].dtype == np.uint32


@pytest.mark.parametrize(
    "how, value, step",
    [("mean", 2.0, 20), ("sum", 6.0, 20), ("first", 3.0, 0), ("last", 1.0, 20), ("max", 3.0, 20), ("count", 3, 20)],
)
def test_reduce_folds_records_and_keeps_one_step(how, value, step):
    logs = losses().filter(lambda key: key == "loss").reduce(how)
    assert float(logs["loss"]) == value
    assert int(logs.step["loss"]) == step
    assert logs.counts["loss"] == 3
    assert logs.stacked == frozenset()


def test_reduce_to_several_values():
    logs = losses().reduce(("min", "max", "append"))
    assert {k: np.asarray(v).tolist() for k, v in logs["loss"].items()} == {
        "append": [3.0, 2.0, 1.0],
        "min": 1.0,
        "max": 3.0,
    }


def test_to_pandas():
    pandas = pytest.importorskip("pandas")
    frame = losses().filter(lambda key: key == "loss").to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["step"].tolist() == [0, 10, 20]
    assert frame["loss"].tolist() == [3.0, 2.0, 1.0]


def test_to_pandas_has_a_column_for_each_leaf():
    pytest.importorskip("pandas")
    value = {"w": jnp.arange(2.0), "b": (jnp.arange(2), jnp.ones(2, jnp.bfloat16))}
    frame = logdict({"net": value, "x": np.zeros((2, 3))}, stacked=["net", "x"]).to_pandas()
    assert list(frame) == ["net/b/0", "net/b/1", "net/w", "x"]
    assert [str(dtype) for dtype in frame.dtypes] == ["int32", "float64", "float32", "object"]
    assert frame["net/w"].tolist() == [0.0, 1.0]


def test_to_pandas_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        losses().to_pandas()


def test_key_order_does_not_depend_on_the_hash_seed():
    program = (
        "import lox\n"
        "def f(x):\n"
        "    for key in ['b', 'a', 'c', 'zebra', 'apple']: lox.log({key: x, key + '2': x})\n"
        "    return x\n"
        "logs = lox.spool(f)(1.0)[1]\n"
        "print(list(logs), list(logs + logs), list(logs | {'new': 1}))"
    )
    outputs = set()
    for seed in ("0", "1", "2"):
        environment = {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().startswith("['b', 'b2', 'a', 'a2', 'c', 'c2', 'zebra', 'zebra2', 'apple', 'apple2']")


def test_steps_may_be_lists():
    logs = logdict({"x": np.ones(2)}, steps={"step": {"x": [1, 2]}}, stacked=["x"])
    assert [steps for steps, _ in logs.rows()] == [{"step": 1}, {"step": 2}]


def test_what_needs_one_lane_says_how_to_get_it():
    logs = jax.vmap(lambda x: lox.spool(lambda x: jax.lax.map(lambda y: lox.log({"y": y}) and y, x))(x)[1])(
        jnp.ones((3, 2))
    )
    for method in ("rows", "table"):
        with pytest.raises(
            lox.LoxError, match=rf"{method}\(\).*Take one lane with jax.tree.map\(lambda x: x\[i\], logs\)\. "
        ):
            getattr(logs, method)()
    with pytest.raises(lox.LoxError, match=r"or map over the lanes with jax.vmap"):
        logs.reduce("mean")
