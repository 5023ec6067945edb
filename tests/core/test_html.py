"""What a notebook shows of logs and reports: safe, small, and right for every kind of value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox import logdict
from lox._html.curve import area_of, line, over_lanes, sparkline, thinned
from lox._html.table import text
from tests.html_checks import Page, page_of


def train(key, steps=50):
    def body(w, i):
        lox.log({"loss": jnp.sum(w**2), "weights": w, "net": {"norm": w[0], "parts": [w[1]]}}, step=i, episode=i // 10)
        return w * 0.9, None

    return jax.lax.scan(body, jax.random.normal(key, (3,)), jnp.arange(steps))[0]


def test_logs_are_a_table_with_a_row_for_each_leaf_and_a_curve():
    _, logs = lox.spool(train)(jax.random.key(0))
    page = page_of(logs)
    rows = page.rows()
    assert list(rows) == ["loss", "weights [3]", "net/norm", "net/parts/0"]
    assert page.curves == 4
    loss = np.asarray(logs["loss"])
    assert rows["loss"]["records"] == "50"
    assert rows["loss"]["steps"] == "step 0 … 49episode 0 … 4"
    assert [rows["loss"][name] for name in ("last", "mean", "min", "max")] == [
        f"{number:.4g}" for number in (loss[-1], loss.mean(), loss.min(), loss.max())
    ]
    assert rows["weights [3]"]["last"] == f"[{', '.join(f'{w:.4g}' for w in np.asarray(logs['weights'])[-1])}]"


def test_lanes_are_a_band():
    _, logs = jax.vmap(lox.spool(train))(jax.random.split(jax.random.key(0), 8))
    page = page_of(logs)
    assert "8 lanes: mean and standard deviation" in page.text
    last = np.asarray(logs["loss"])[:, -1]
    assert page.rows()["loss"]["last"] == f"{last.mean():.4g} ± {last.std():.4g}"
    assert page.rows()["loss"]["records"] == "50"
    assert logs._repr_html_().count("fill-opacity") == 4


def test_what_is_traced_is_shown_by_its_type():
    shown = []

    @jax.jit
    def f(key):
        _, logs = lox.spool(train)(key)
        shown.append(logs._repr_html_())
        return logs.reduce("mean")

    shown.append(jax.vmap(f)(jax.random.split(jax.random.key(0), 2))._repr_html_())
    assert Page(shown[0]).rows()["loss"] == dict.fromkeys(["steps", "mean", "min", "max", ""], "") | {
        "records": "50",
        "last": "float32[50]",
    }
    assert jax.eval_shape(lox.spool(train), jax.random.key(0))[1]._repr_html_().count("float32[50") == 4


ODD = {
    "bool": (np.array([True, False, True]), "True", "0.6667"),
    "int8": (np.array([1, -128, 127], np.int8), "127", "0"),
    "uint64": (np.array([2**64 - 1], np.uint64), str(2**64 - 1), ""),
    "complex": (np.array([3 + 4j, 6 + 8j]), "6+8j", "7.5"),
    "bfloat16": (np.asarray(jnp.array([1, 2], jnp.bfloat16)), "2", "1.5"),
    "float8": (np.asarray(jnp.array([1, 2], jnp.float8_e4m3fn)), "2", "1.5"),
    "int4": (np.asarray(jnp.array([1, 3], jnp.int4)), "3", "2"),
    "text": (np.array(["<i>a", "<b>b"]), "<b>b", ""),
    "date": (np.array(["2020-01-01"], "M8[D]"), "2020-01-01", ""),
    "nothing": (np.zeros((0, 3)), "float64[3]", ""),
    "no elements": (np.zeros((4, 0)), "[]", ""),
    "huge": (np.array([1.5e308, 1.7e308, -1.7e308]), "-1.7e+308", "5e+307"),
    "tiny": (np.array([5e-324, 0.0]), "0", "0"),
    "nan": (np.array([np.nan, np.nan]), "nan", ""),
    "inf": (np.array([1.0, np.inf, -np.inf, np.nan]), "nan", "1"),
    "same": (np.array([2.0, 2.0]), "2", "2"),
    "one": (np.array([2.0]), "2", ""),
    "matrix": (np.ones((3, 4, 5)), "float64[4,5]", "1"),
}


@pytest.mark.parametrize("kind", ODD)
def test_values_of_any_kind_are_shown(kind):
    values, last, mean = ODD[kind]
    page = page_of(logdict({kind: values}, stacked=[kind]))
    (row,) = page.rows().values()
    assert (row["last"], row["mean"]) == (last, mean)
    drawn = len(values) > 1 and values.size and values.dtype.kind not in "UM" and kind != "nan"
    assert page.curves == bool(drawn)


def test_values_that_are_no_numbers_are_shown():
    keys = jax.random.split(jax.random.key(0), 3)
    values = {"key": keys[0], "keys": keys, "none": None, "empty": {}, "text": "<script>", "object": object}
    rows = page_of(logdict(values)).rows()
    assert rows["keys"]["last"] == "key<fry>[3]"
    assert rows["none"]["last"] == "None"
    assert rows["empty"]["last"] == "{}"
    assert rows["text"]["last"] == "'<script>'"


def test_a_deleted_array_is_shown_by_its_type():
    array = jnp.ones(3)
    array.delete()
    assert page_of(logdict({"x": array}, counts={"x": 3}, stacked=["x"])).rows()["x"]["last"] == "float32[3]"


def test_what_is_not_finite_is_told():
    rows = page_of(logdict({"x": np.array([1.0, np.nan, np.inf, np.nan])}, stacked=["x"])).rows()
    assert list(rows) == ["x 2 nan, 1 inf"]
    assert rows["x 2 nan, 1 inf"]["max"] == "1"


def test_names_are_text():
    keys = ["<script>alert(1)</script>", "a&b", 'x" onload="x', "long" * 100, "new\nline", "\u202eturned"]
    page = page_of(logdict(dict.fromkeys(keys, 1.0)))
    shown = list(page.rows())
    assert shown[:3] == keys[:3]
    assert shown[3].startswith("longlong")
    assert "…" in shown[3]
    assert len(shown[3]) == 48
    assert shown[4:] == [r"new\nline", r"\u202eturned"]


def test_a_long_text_has_its_two_ends_and_the_rest_as_a_hint():
    assert text("x" * 10) == "x" * 10
    assert text("a" * 30 + "<" + "b" * 30).count("a" * 30 + "&lt;" + "b" * 30) == 1
    assert len(text("é<" * 10_000)) < 5000


def test_empty_logs():
    assert "empty: nothing was recorded" in page_of(logdict()).text
    with pytest.warns(UserWarning, match="no such key"):
        _, logs = lox.spool(train, argnames="other")(jax.random.key(0))
    assert page_of(logs).tables == []


def test_many_keys_are_not_all_shown():
    shown = logdict(
        {f"key{number}": np.arange(1000.0) for number in range(1000)}, stacked=[f"key{n}" for n in range(1000)]
    )
    page = page_of(shown)
    assert len(page.rows()) == 40
    assert "and 960 more rows" in page.text
    assert "1000 keys" in page.text
    assert len(shown._repr_html_()) < 120_000


@pytest.mark.parametrize("shape", [(1_000_000,), (1000, 1000), (2, 3, 500)])
def test_the_size_does_not_grow_with_the_records_or_the_lanes(shape):
    values = np.random.default_rng(0).normal(size=shape)
    counts = {"x": shape[-1]}
    shown = logdict({"x": values}, counts=counts, stacked=["x"])._repr_html_()
    assert Page(shown).curves == 1
    assert len(shown) < 8_000


def test_an_array_that_would_take_seconds_is_shown_by_its_type():
    row = page_of(logdict({"x": np.broadcast_to(np.float32(0), (20_000_000,))}, stacked=["x"])).rows()["x"]
    assert (row["records"], row["last"], row["mean"]) == ("20000000", "float32[20000000]", "")


def test_devices_of_a_shard_map_are_elements_and_no_lanes():
    steps = np.repeat(np.arange(10), 4).reshape(10, 4)
    logs = logdict({"x": np.ones((10, 4))}, {"step": {"x": steps}}, stacked=["x"])
    page = page_of(logs)
    assert list(page.rows()) == ["x [4]"]
    assert "lanes" not in page.text


def test_bounded_logs_count_all_records_and_show_the_rows_that_are_used():
    def f(n):
        def body(carry):
            i, x = carry
            lox.log({"x": x}, step=i)
            return i + 1, x * 2

        return jax.lax.while_loop(lambda carry: carry[0] < n, body, (0, 1.0))

    _, few = lox.spool(f, capacity=8)(3)
    assert page_of(few).rows()["x"] | {"": ""} == {
        "records": "3",
        "steps": "step 0 … 2",
        "last": "4",
        "mean": "2.333",
        "min": "1",
        "max": "4",
        "": "",
    }
    _, many = lox.spool(f, capacity=8)(20)
    assert page_of(many).rows()["x"]["records"] == "last 8 of 20"
    assert page_of(many).rows()["x"]["min"] == "4096"
    _, lanes = jax.vmap(lox.spool(f, capacity=8))(jnp.array([2, 5, 0]))
    row = page_of(lanes).rows()["x"]
    assert (row["records"], row["steps"], row["max"]) == ("0 … 5", "step 0 … 4", "16")
    assert row["last"] == "9 ± 7"  # of the lanes that have a record


def test_a_reduction_is_its_value():
    _, logs = lox.spool(train, reduce="mean")(jax.random.key(0))
    rows = page_of(logs).rows()
    assert rows["loss"]["records"] == "50"
    assert rows["loss"]["last"] == f"{float(logs['loss']):.4g}"
    assert rows["loss"]["mean"] == ""


def test_steps_that_go_backwards_are_drawn_from_left_to_right():
    steps = np.arange(10)[::-1]
    forwards = logdict({"x": np.arange(10.0)}, {"step": {"x": np.arange(10)}}, stacked=["x"])
    backwards = logdict({"x": np.arange(10.0)[::-1]}, {"step": {"x": steps}}, stacked=["x"])
    path = forwards._repr_html_().split('d="')[1].split('"')[0]
    assert path in backwards._repr_html_()


def test_steps_that_are_not_finite_are_left_out_of_the_curve():
    steps = np.array([0.0, np.nan, 1.0, np.inf])
    shown = logdict({"x": np.arange(4.0)}, {"time": {"x": steps}}, stacked=["x"])._repr_html_()
    (path,) = [part.split('"')[0] for part in shown.split('<path d="')[1:]]
    assert path == "M2,23L148,3"  # from 0 to 2, below left to above right


def test_the_curve_of_few_points_has_all_peaks():
    values = np.zeros(100_000)
    values[54_321] = 7.0
    small = thinned(line(np.arange(100_000), values), 50)
    assert len(small.steps) == 50
    assert small.high.max() == 7.0
    assert small.center.max() < 0.01


def test_curves_are_drawn_inside_their_picture():
    for values in ([1.0, 2.0], [1e308, -1e308], [0.0, 0.0], [1.0, np.nan, 3.0], [np.nan, 5.0, np.nan]):
        frame = area_of([line(range(len(values)), values)], 0, 0, 100, 20)
        y = frame.y(np.asarray([v for v in values if np.isfinite(v)]))
        assert ((y >= 0) & (y <= 20)).all()
        assert "nan" not in sparkline(line(range(len(values)), values))
    assert sparkline(line([0, 1], [np.nan, np.inf])) == ""


def test_lanes_that_are_not_finite_leave_the_others():
    curve = over_lanes(np.arange(2.0), np.array([[1.0, np.nan], [3.0, np.inf]]))
    assert curve.center.tolist()[0] == 2.0
    assert np.isnan(curve.center[1])


# --- reports ---------------------------------------------------------------------------------------------------------


def logarithms(x):
    return jax.lax.scan(lambda c, _: (c - 1.0, jnp.log(c)), x, None, length=10)[1]


def test_a_report_is_a_row():
    page = page_of(lox.find_nonfinite(logarithms)(3.0)[1])
    ((kind, row),) = page.rows().items()
    assert kind == "inf"
    assert row["operation"] == "log"
    assert row["iteration"] == "3 of scan"
    assert row["operands"] == "0"
    assert "test_html.py" in row["line"]
    assert "no nan or inf arose" in page_of(lox.find_nonfinite(logarithms)(30.0)[1]).text


def test_reports_of_lanes_are_rows_and_not_too_many():
    report = jax.vmap(lox.find_nonfinite(logarithms))(jnp.arange(100.0) - 90)[1]
    page = page_of(report)
    assert "100 of 100 found a nan or inf" in page.text
    assert len(page.rows()) == 20
    assert "and 80 more lanes" in page.text


def test_a_traced_report_says_so():
    shown = []
    jax.jit(lambda x: shown.append(lox.find_nonfinite(logarithms)(x)[1]._repr_html_()))(3.0)
    assert "not known yet" in Page(shown[0]).text
