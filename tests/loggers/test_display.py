"""Console and progress: what is seen, on a terminal and elsewhere."""

import contextlib
import io
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import ConsoleLogger, LoggerOptionError, ProgressLogger
from lox.loggers._backends.display.board import Trend
from lox.loggers._backends.display.numbers import short, sparkline


@pytest.fixture
def make_terminal():
    """Real terminals, as far as a program can tell: pseudo-terminals."""
    pytest.importorskip("pty")  # Windows has none
    from tests.loggers.terminal import Terminal

    return Terminal


def log_steps(logger, runs, steps, key=0):
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(key), runs))
    record = jax.vmap(
        lambda state, lane, step: logger.log(state, {"loss": lane + step / 10, "acc": lane}, step=step),
        in_axes=(0, 0, None),
    )
    for step in range(steps):
        record(states, jnp.arange(float(runs)), step)
    return [run.name for run in logger.runs]


def test_lines_where_it_is_no_terminal():
    out = io.StringIO()
    with ConsoleLogger(file=out, interval=1000) as logger:
        (name,) = log_steps(logger, 1, 5)
        assert out.getvalue() == ""  # not yet time
        logger.flush()
        first = out.getvalue()
        logger.flush()
        assert out.getvalue() == first  # nothing new, no line
    assert re.fullmatch(rf"{name}  step=4  loss=0.4  acc=0  \(5 records, .*/s\)\n", out.getvalue())


def test_lines_go_to_what_standard_output_is_at_the_time(capsys):
    with lox.loggers.create("console") as logger:
        log_steps(logger, 1, 2)
    assert "loss=0.1" in capsys.readouterr().out


def test_many_runs_are_one_line_with_mean_and_range():
    out = io.StringIO()
    with ConsoleLogger(file=out, interval=1000) as logger:
        log_steps(logger, 100, 3)
    (line,) = out.getvalue().splitlines()
    assert line.startswith("100 runs  step=2  loss=49.7 [0.2, 99.2]  acc=49.5 [0, 99]  (300 records, ")


def test_a_few_runs_have_a_line_each():
    out = io.StringIO()
    with ConsoleLogger(file=out, interval=1000) as logger:
        names = log_steps(logger, 3, 2)
    assert [line.split()[0] for line in out.getvalue().splitlines()] == names


@pytest.mark.parametrize(
    ("runs", "shown"), [(1, ["key", "latest"]), (4, ["run", "step", "/s"]), (100, ["mean", "min", "max"])]
)
def test_the_table_fits_the_terminal_and_says_what_is_asked(runs, shown):
    out = io.StringIO()
    with ConsoleLogger(file=out, live=True, interval=1000) as logger:
        log_steps(logger, runs, 20)
    last = out.getvalue()
    assert all(word in last for word in [*shown, "loss", "acc", f"{20 * runs} records", "▁", "█"])
    assert "step 19" in last
    assert len(last.splitlines()) < 40  # drawn at the end, not once for each run


def test_a_terminal_gets_the_table_and_its_cursor_back(make_terminal):
    terminal = make_terminal(columns=80)
    with ConsoleLogger(file=terminal.file) as logger:
        log_steps(logger, 1, 3)
    assert any("loss" in line for line in terminal.lines())
    seen = terminal.text()
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # hidden while it is drawn, shown again after


LONG = ("train/actor/policy_loss", "train/critic/value_loss", "train/optimizer/grad_norm")


@pytest.mark.parametrize(("runs", "columns"), [(1, 80), (4, 80), (4, 60), (30, 80), (30, 60), (1, 40)])
def test_in_a_narrow_terminal_values_steps_and_rates_are_whole(make_terminal, runs, columns):
    terminal = make_terminal(columns=columns)
    with ConsoleLogger(file=terminal.file, interval=1000) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), runs))
        for step in range(123_450, 123_457):
            jax.vmap(
                lambda state, lane, step=step: logger.log(
                    state, {key: lane - 0.1234 * (number + 1) for number, key in enumerate(LONG)}, step=step
                )
            )(states, jnp.arange(float(runs)))
    lines = [line for line in terminal.lines() if line]
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    if runs == 4:
        rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
        assert [row[1].strip() for row in rows] == ["123456"] * 4
        assert [row[2].strip().split()[0] for row in rows] == ["-0.1234", "0.8766", "1.877", "2.877"]
        assert all(re.fullmatch(r"[\d.]+", row[-1].strip()) for row in rows)
    else:
        assert "-0.3702" in text
    assert re.search(rf"step 123456, {7 * runs} records,\s[\d.]+/s", text)
    assert all(key[-5:] in text for key in LONG)


@pytest.mark.parametrize("runs", [1, 3])
def test_curves_are_drawn_below_the_table(make_terminal, runs):
    terminal = make_terminal(columns=80)
    with ConsoleLogger(file=terminal.file, interval=1000, plot=["lo*"]) as logger:
        log_steps(logger, runs, 20)
    lines = [line for line in terminal.lines() if line]
    assert sum("•" in line for line in lines) >= 5
    (axis,) = [line.split() for line in lines if line.lstrip().startswith("step ") and line.endswith(" 19")]
    assert axis == ["step", "0", "19"]
    assert any(line.startswith("loss" if runs == 1 else "loss (mean of 3 runs") for line in lines)
    assert not any(line.startswith("acc") for line in lines)


def test_lines_have_no_curves():
    out = io.StringIO()
    with ConsoleLogger(file=out, plot="loss") as logger:
        log_steps(logger, 1, 3)
    assert len(out.getvalue().splitlines()) == 1


def test_a_table_and_a_bar_share_a_terminal(make_terminal):
    terminal = make_terminal(columns=80)
    console, bar = ConsoleLogger(file=terminal.file, interval=0.02), ProgressLogger(40, file=terminal.file)
    with lox.loggers.MultiLogger(console, bar) as logger:
        state = logger.init(jax.random.key(0))
        for step in range(40):
            logger.log(state, {"loss": step / 10}, step=step)
            if step % 10 == 0:
                logger.flush()  # both draw, each from its own thread
                print(f"the program is at {step}")
    lines = [line for line in terminal.lines() if line]
    assert sum("key" in line and "latest" in line for line in lines) == 1, lines  # drawn again in the same place
    assert [line for line in lines if "│ loss" in line and "3.9" in line]
    assert [line for line in lines if "40/40" in line] == lines[-1:]
    assert sum("━━━━━━━━━━━━━━━━━━━━" in line and "/40" in line for line in lines) == 1
    assert any("step 39, 40 records" in line for line in lines)
    assert "the program is at 30" in lines  # what is printed meanwhile stands above


def test_displays_on_one_terminal_may_come_and_go(make_terminal):
    terminal = make_terminal(columns=80)
    with ProgressLogger(4, file=terminal.file) as outer:
        state = outer.init(jax.random.key(0))
        for step in range(4):
            with ConsoleLogger(file=terminal.file) as inner:
                inner.log(inner.init(jax.random.key(step)), {f"loss{step}": 1.0}, step=step)
            outer.log(state, {"x": 1.0}, step=step)
            outer.flush()
    lines = [line for line in terminal.lines() if line]
    assert [line.split()[1] for line in lines if line.startswith("│")] == [f"loss{step}" for step in range(4)]
    assert "4/4" in lines[-1]
    assert sum("/4" in line for line in lines) == 1


def test_arrays_are_shown_by_their_mean_and_text_not_at_all():
    out = io.StringIO()
    with ConsoleLogger(file=out) as logger:
        logger.log(logger.init(jax.random.key(0)), {"v": np.array([1.0, 2.0]), "n": {"c": 3 + 4j}, "t": "text"})
    assert "v=1.5  n/c=5  (1 record," in out.getvalue()


def test_the_progress_bar_follows_a_step_axis():
    def train(xs):
        def body(total, i):
            lox.log({"loss": total * 1.0, "hidden": i}, step=i)
            return total + i, None

        return jax.lax.scan(body, 0, xs)[0]

    out = io.StringIO()
    with ProgressLogger(40, metrics="lo*", file=out) as logger:
        state = logger.init(jax.random.key(0))
        for part in range(4):
            jax.jit(logger.tap(train, state))(10 * part + jnp.arange(10))
            logger.flush()
    lines = out.getvalue().splitlines()
    assert [line.split()[1:3] for line in lines][-1] == ["40/40", "(100%)"]
    assert {line.split()[1] for line in lines} >= {"10/40", "20/40", "30/40"}
    assert lines[-1].endswith("loss=306")
    assert "hidden" not in out.getvalue()


@pytest.mark.parametrize("runs", [3, 50])
def test_lanes_in_lockstep_share_one_bar(runs):
    out = io.StringIO()
    with ProgressLogger(10, file=out, live=True, metrics="loss") as logger:
        log_steps(logger, runs, 10)
    final = out.getvalue().rstrip().splitlines()[-1]
    assert f"{runs} runs" in final
    assert "10/10" in final
    assert "loss=" in final


def test_runs_that_are_not_equally_far_have_a_bar_each():
    out = io.StringIO()
    with ProgressLogger(10, file=out, live=False) as logger:
        for run, steps in enumerate((10, 5)):
            state = logger.init(jax.random.key(run << 32 | run))
            for step in range(steps):
                logger.log(state, {"x": 1}, step=step)
    last = {line.split()[0]: line.split()[1] for line in out.getvalue().splitlines()}
    assert sorted(last.values()) == ["10/10", "5/10"]


def test_only_records_with_its_axis_move_the_bar():
    out = io.StringIO()
    with ProgressLogger(10, axis="update", file=out) as logger:
        state = logger.init(jax.random.key(0))
        for episode in range(6):
            logger.log(state, {"return": 1.0}, frame=8 * episode)
        logger.flush()
        assert out.getvalue() == ""
        for update in range(3):
            logger.log(state, {"loss": 1.0}, update=update)
    assert out.getvalue().splitlines()[-1].split()[1] == "3/10"


def test_an_axis_that_no_record_has_is_told_at_the_end():
    out = io.StringIO()
    with ProgressLogger(10, file=out) as logger:
        logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, update=3)
    assert out.getvalue() == "no record had the step axis 'step'. Pass axis= with one of update\n"


@pytest.mark.parametrize(
    ("start", "steps", "end"),
    [(0, range(0, 100, 10), "100/100"), (0, range(0, 50, 10), "41/100"), (1, range(1, 101), "100/100")],
)
def test_an_interval_ends_at_the_end_and_only_there(start, steps, end):
    out = io.StringIO()
    with ProgressLogger(100, start=start, file=out) as logger:
        state = logger.init(jax.random.key(0))
        for step in steps:
            logger.log(state, {"loss": 1.0}, step=step)
    assert out.getvalue().splitlines()[-1].split()[1] == end


def test_log_files_have_the_times_with_their_names():
    out = io.StringIO()
    with ProgressLogger(4, file=out) as logger:
        logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=1)
    assert re.search(r"2/4 \(50%\)  elapsed \d+:\d\d  remaining \d+:\d\d", out.getvalue())


def test_a_bar_says_compiling_until_the_first_record(make_terminal):
    terminal = make_terminal(columns=100)
    with ProgressLogger(4, file=terminal.file) as logger:
        logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=0)
    (last,) = [line for line in terminal.lines() if "/4" in line]
    assert "elapsed 0:" in last
    assert "compiling" not in last
    assert "compiling" in terminal.text()


def test_the_console_shows_configs_and_no_mean_of_hyperparameters():
    out = io.StringIO()
    keys, rates = jax.random.split(jax.random.key(0), 20), jnp.linspace(0.1, 0.3, 20)
    with ConsoleLogger(file=out) as logger:
        init = jax.vmap(lambda key, rate: logger.init(key, {"rate": rate, "env": "CartPole"}))
        states = init(keys, rates)
        jax.vmap(lambda state, x: logger.log(state, {"width": x}))(states, jnp.arange(20.0))
        jax.vmap(lambda state, x: logger.log(state, {"loss": x}, step=0))(states, jnp.arange(20.0))
    first = out.getvalue().splitlines()[0]
    assert first.startswith("20 runs  rate=0.1..0.3  env=CartPole")
    assert "width=0..19" in out.getvalue()
    assert "width=9.5" not in out.getvalue()
    assert "loss=9.5 [0, 19]" in out.getvalue()


def test_records_without_the_axis_are_counted_and_an_unknown_end_is_fine():
    out = io.StringIO()
    with ProgressLogger(4, file=out) as logger:
        state = logger.init(jax.random.key(0))
        for _ in range(4):
            logger.log(state, {"x": 1})
    assert "4/4 (100%)" in out.getvalue()
    with ProgressLogger(file=io.StringIO(), live=True) as logger:
        log_steps(logger, 2, 3)


def test_options():
    with pytest.raises(LoggerOptionError, match="total=0"):
        ProgressLogger(0)
    with pytest.raises(LoggerOptionError, match="interval=-1"):
        ConsoleLogger(interval=-1)
    with pytest.raises(LoggerOptionError, match="plot=True; it must be a key"):
        ConsoleLogger(plot=True)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (12, "12"),
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (1e12, "1e+12"),
        (float("nan"), "nan"),
        (-3.0, "-3"),
    ],
)
def test_short_numbers(number, text):
    assert short(number) == text


def test_sparklines():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([1, float("nan"), 2]) == "▁ █"
    assert sparkline([float("nan")]) == " "
    assert sparkline(np.arange(1000), width=8) == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize("block", [1, 7, 5000])
def test_the_course_of_a_value_goes_back_to_the_start_of_the_run(block):
    trend = Trend()
    numbers = np.arange(5000.0)
    for start in range(0, 5000, block):
        trend.extend(numbers[start : start + block])
    shown = trend.numbers()
    assert shown[0] == 0
    assert shown[-1] == 4999
    assert 30 <= len(shown) <= 65
    assert len(set(np.diff(shown[:-1]))) == 1  # evenly spread


def test_the_course_of_a_few_values_is_all_of_them():
    trend = Trend()
    for number in (3.0, 1.0, 2.0):
        trend.extend(np.array([number]))
    assert trend.numbers() == [3.0, 1.0, 2.0]


def test_the_largest_step_is_shown_also_if_an_earlier_record_arrives_late():
    out = io.StringIO()
    with ConsoleLogger(file=out, interval=1000) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"train": 1.0}, step=499)
        logger.flush()
        logger.log(state, {"eval": 2.0}, step=400)
    assert "step=499  train=1  eval=2" in out.getvalue()


def test_names_cannot_steer_the_terminal():
    out = io.StringIO()
    with ConsoleLogger(file=out) as logger:
        logger.log(logger.init(jax.random.key(0)), {"a\x1b[2J\r\n\x07b": 1.0})
    assert r"a\x1b[2J\r\n\x07b=1" in out.getvalue()
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("how", ["spool", "tap"])
def test_the_console_counts_records_however_they_come(how):
    def f(xs):
        lox.log({"rate": 0.1})

        def body(c, x):
            lox.log({"loss": c, "norm": c}, step=x)
            lox.log({"eval": c}, step=x, where=x % 5 == 0)
            return c + 1.0, None

        return jax.lax.scan(body, 0.0, xs)[0]

    file = io.StringIO()
    with lox.loggers.ConsoleLogger(file=file) as logger:
        getattr(logger, how)(f, logger.init(jax.random.key(0)))(jnp.arange(10))
    assert "(10 records" in file.getvalue().splitlines()[-1]  # those of the key that has the most


ODD_KEYS = [
    "loss[/x]",
    "[bold red]loss[/]",
    "[link=http://evil]x[/link]",
    "a[0]",
    "x[/]",
    ":tada:",
    "[@click=app.quit]x[/]",
]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("kind", ["console", "progress"])
@pytest.mark.parametrize("key", ODD_KEYS)
def test_markup_in_a_key_is_text(kind, live, key):
    out = io.StringIO()
    options = {"console": {}, "progress": {"total": 3, "metrics": "*"}}[kind]
    with lox.loggers.create(kind, file=out, live=live, **options) as logger:
        logger.log(logger.init(jax.random.key(0)), {key: 1.0}, step=0)
    assert key in out.getvalue()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("kind", ["console", "progress"])
def test_a_closed_pipe_ends_the_display_and_not_the_training(kind, live, tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        options = {"console": {"interval": 0}, "progress": {"total": 3, "metrics": "*"}}[kind]
        shown = lox.loggers.create(kind, file=file, live=live, **options)
        with lox.loggers.create([shown, lox.loggers.JsonlLogger(tmp_path)]) as logger:
            state = logger.init(jax.random.key(0))
            logger.log(state, {"x": 0.0}, step=0)
            logger.flush()
            os.close(reading)
            for step in range(1, 5):
                logger.log(state, {"x": 1.0}, step=step)
                logger.flush()
        with contextlib.suppress(BrokenPipeError):
            file.close()
    assert len((tmp_path / "0000000000000000.jsonl").read_text().splitlines()) == 5
