"""Console, progress, logs and figures in one real kernel: what the saved notebook has when all cells have run."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tests.notebooks.kernel import FAILS, execute, notebook_of, shown

SETUP = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
import lox, lox.loggers
from lox.loggers import ConsoleLogger, ProgressLogger

def train(key, steps=30, pause=0.0):
    def step(w, i):
        jax.debug.callback(lambda: time.sleep(pause))
        lox.log({"loss": jnp.sum(w**2), "<norm>": w[0]}, step=i)
        return w * 0.9, None
    return jax.lax.scan(step, jax.random.normal(key, (4,)), jnp.arange(steps))[0]

class Publisher:
    "Counts what is sent to the notebook."
    def __init__(self):
        self.publish, self.sent = get_ipython().display_pub.publish, []
        get_ipython().display_pub.publish = self
    def __call__(self, data, *args, transient=None, update=False, **options):
        self.sent.append((threading.current_thread().name, update))
        return self.publish(data, *args, transient=transient, update=update, **options)
    def stop(self):
        get_ipython().display_pub.publish = self.publish
"""

CELLS = {
    "setup": SETUP,
    # One output, updated while the program runs.
    "progress": """
publisher = Publisher()
with lox.loggers.create("progress", total=30, metrics="loss") as logger:
    result = jax.jit(logger.tap(lambda key: train(key, 30, 0.02), logger.init(jax.random.key(0))))(jax.random.key(1))
publisher.stop()
""",
    "sent": "publisher.sent",
    "console": """
with lox.loggers.create("console", plot=["lo*"]) as logger:
    result = jax.jit(logger.tap(train, logger.init(jax.random.key(0), {"rate": 0.1})))(jax.random.key(1))
""",
    # A program without marks.
    "unmarked": """
def unmarked(x):
    def body(x, i):
        jax.debug.callback(lambda: time.sleep(0.05))
        return x * 0.9, None
    return jax.lax.scan(body, x, jnp.arange(40))[0]
bar = lox.loggers.progress(jax.jit(unmarked))
result = bar(1.0).block_until_ready(); jax.effects_barrier()
""",
    "unmarked: again": "result = bar(1.0).block_until_ready(); time.sleep(1)",
    # Several loggers, and several cells.
    "several: init": """
logger = lox.loggers.create(["console", "progress"])
keys = jax.random.split(jax.random.key(0), 3)
states = jax.vmap(logger.init)(keys, {"rate": jnp.arange(3.0)})
""",
    "several: run": "result = jax.jit(jax.vmap(lambda state, key: logger.tap(train, state)(key)))(states, keys)",
    "several: look": "jax.effects_barrier(); logger.flush(); logger.runs",
    "several: close": "logger.close()",
    # Two cells that do not wait for what they show.
    "hasty: first": """
logger = ConsoleLogger(interval=1000)
state = logger.init(jax.random.key(0))
logger.log(state, {"loss": 1.0}, step=1)
""",
    "hasty: second": "logger.log(state, {'loss': 1.0}, step=2)",
    "hasty: close": "logger.close()",
    # The same cell once more. The compiled function does not call the logger from Python.
    "again: make": """
logger = ConsoleLogger(interval=0)
again = jax.jit(logger.tap(train, logger.init(jax.random.key(0))))
""",
    "again: first": "result = again(jax.random.key(1)); jax.effects_barrier(); logger.flush()",
    "again: other": "another = 1 + 1; time.sleep(0.2)",
    "again: second": "result = again(jax.random.key(1)); jax.effects_barrier(); logger.flush()",
    "again: close": "logger.close()",
    # Records that come while a later cell runs.
    "late: start": """
go = threading.Event()
logger = ConsoleLogger(interval=0)
state = logger.init(jax.random.key(0))
logger.log(state, {"loss": 1.0}, step=0)
def work():
    go.wait()
    for step in range(1, 6):
        logger.log(state, {"loss": 1.0 / step}, step=step)
thread = threading.Thread(target=work)
thread.start()
""",
    "late: later": "go.set(); thread.join(); logger.flush()",
    "late: close": "logger.close()",
    # Outputs that are cleared, and a notebook that cannot be reached.
    "cleared": """
from IPython.display import clear_output
with ConsoleLogger(interval=0) as logger:
    state = logger.init(jax.random.key(0))
    for step in range(5):
        logger.log(state, {"loss": 1.0}, step=step)
        logger.flush()
        clear_output()
print("went on")
""",
    "unreachable": """
def fail(*args, **options):
    raise RuntimeError("the socket is closed")
memory = lox.loggers.MemoryLogger()
with lox.loggers.create([ConsoleLogger(interval=0), ProgressLogger(5), memory]) as logger:
    state = logger.init(jax.random.key(0))
    for step in range(5):
        logger.log(state, {"loss": 1.0}, step=step)
        logger.flush()
        get_ipython().display_pub.publish = fail
get_ipython().display_pub.publish = publisher.publish
len(memory.logs["0000000000000000"]["loss"])
""",
    # An interrupt in the middle of a run.
    "interrupted": FAILS
    + """
logger = lox.loggers.create(["console", "progress"])
state = logger.init(jax.random.key(0))
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
for step in range(1_000_000):
    logger.log(state, {"loss": 1.0}, step=step)
    time.sleep(0.01)
""",
    "after the interrupt": """
logger.log(state, {"loss": 2.0}, step=step + 1)
logger.close()
""",
    # As before, where a file or lines are asked for.
    "lines": """
with ConsoleLogger(live=False) as console, ProgressLogger(2, file=sys.stdout) as bar:
    for logger in (console, bar):
        logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=1)
""",
    "old kernel": """
import IPython.display
handle = IPython.display.DisplayHandle
del IPython.display.DisplayHandle
with ConsoleLogger() as logger:
    logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=1)
IPython.display.DisplayHandle = handle
""",
    # Without a record, and with odd ones.
    "nothing": """
with lox.loggers.create(["console", "progress"]) as logger:
    logger.init(jax.random.key(0))
""",
    "odd": """
with lox.loggers.create("console", plot="*") as logger:
    state = logger.init(jax.random.key(0), {"<i>": "<b>"})
    for step in range(3):
        odd = {"nan": float("nan"), "<script>": step, "k" * 300: float("inf"), "text": "<u>", "huge": (-1) ** step * 1.7e308}
        logger.log(state, odd, step=float("nan") if step == 1 else step)
""",
    # What shows itself.
    "logs": "_, logs = lox.spool(train)(jax.random.key(0)); logs",
    "figure": "logs.plot('loss')",
    "report": "lox.find_nonfinite(lambda x: jnp.log(x) / 0)(-1.0)[1]",
    "load": """
with lox.loggers.SaveLogger("runs") as logger:
    logger.log(logger.init(jax.random.key(0), {"rate": 0.1}), logs)
lox.loggers.load("runs")
""",
    # Left open: the kernel ends, and nothing is lost.
    "left open": """
logger = lox.loggers.create(["console", "progress", lox.loggers.JsonlLogger("left")])
state = logger.init(jax.random.key(0))
for step in range(100):
    logger.log(state, {"loss": 1.0}, step=step)
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernel")


@pytest.fixture(scope="module")
def outputs(folder):
    return execute(notebook_of(CELLS), folder)


def test_a_progress_bar_is_one_output_with_its_last_state(outputs):
    (output,) = outputs["progress"]
    assert output.output_type == "display_data"
    page = shown(output)
    assert "30/30 (100%)" in page.text
    assert "loss=" in page.text
    assert "compiling" not in page.text
    assert output.data["text/plain"].startswith("00000000  30/30 (100%)  elapsed 0:0")


def test_the_output_is_made_by_the_cell_and_updated_by_the_background_thread(outputs):
    first, *updates = eval(outputs["sent"][0].data["text/plain"])
    assert first == ("MainThread", False)
    assert len(updates) >= 3
    assert {update for _, update in updates} == {True}
    assert {thread for thread, _ in updates} == {"lox:ProgressLogger"}


def test_the_bar_of_an_unmarked_program_is_below_the_cell_that_calls_it(outputs):
    for name in ("unmarked", "unmarked: again"):
        (output,) = outputs[name]
        assert "40/40 (100%)" in shown(output).text


def test_a_console_is_a_table_with_live_curves(outputs):
    (output,) = outputs["console"]
    page = shown(output)
    assert "step 29, 30 records" in page.text
    assert "rate=0.1" in page.text
    assert list(page.rows()) == ["loss", "<norm>"]
    assert page.curves == 3  # one of them large, as `plot=` says
    assert "step=29" in output.data["text/plain"]


def test_an_output_is_below_the_cell_that_runs_the_program(outputs):
    assert [output.data for output in outputs["several: init"]] == [{"text/plain": ""}] * 2  # were waiting there
    table, bar = map(shown, outputs["several: run"])
    assert "3 runs step 29, 90 records" in table.text
    assert [row["step"] for row in table.rows().values()] == ["29"] * 3
    assert "3 runs30" in bar.text
    assert [output.output_type for output in outputs["several: look"]] == ["execute_result"]
    assert "3 open" not in shown(outputs["several: look"][0]).text  # two loggers, three runs each
    assert "6 open" in shown(outputs["several: look"][0]).text
    assert outputs["several: close"] == []


def test_an_output_that_goes_on_elsewhere_shows_all_that_came_before(outputs):
    for name, records in (("hasty: first", "1 record,"), ("hasty: second", "2 records")):
        (output,) = outputs[name]
        assert records in shown(output).text


def test_a_cell_that_is_run_again_has_the_output_again(outputs):
    for name, records in (("again: first", 30), ("again: second", 60)):
        (output,) = outputs[name]
        assert f"{records} records" in shown(output).text
    assert outputs["again: other"] == []
    assert outputs["again: close"] == []


def test_records_that_come_late_do_not_take_the_output_of_the_next_cell(outputs):
    (output,) = outputs["late: start"]
    assert "6 records" in shown(output).text
    assert outputs["late: later"] == []


def test_cleared_and_unreachable_outputs_stop_nothing(outputs):
    assert outputs["cleared"][-1].text == "went on\n"
    assert outputs["unreachable"][-1].data["text/plain"] == "5"


def test_after_an_interrupt_everything_goes_on(outputs):
    *displays, error = outputs["interrupted"]
    assert error.ename == "KeyboardInterrupt"
    assert len(displays) == 2
    table, bar = map(shown, outputs["after the interrupt"])
    assert table.rows()["loss"]["latest"] == "2"


def test_lines_where_they_are_asked_for(outputs):
    assert {output.name for output in outputs["lines"]} == {"stdout"}
    lines = "".join(output.text for output in outputs["lines"]).splitlines()
    assert sorted(line.split("  ")[1] for line in lines) == ["2/2 (100%)", "step=1"]


def test_a_kernel_that_cannot_update_outputs_gets_lines(outputs):
    (output,) = outputs["old kernel"]
    assert output.text.startswith("0000000000000000  step=1  loss=1 ")


def test_ipython_on_a_terminal_is_no_notebook(tmp_path):
    code = """
import jax, lox.loggers
assert get_ipython() is not None
with lox.loggers.create("console") as logger:
    logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=1)
"""
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "-c", code]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout.startswith("0000000000000000  step=1  loss=1 "), done.stdout + done.stderr


def test_nothing_goes_to_standard_error(outputs):
    streams = [output for of_cell in outputs.values() for output in of_cell if output.output_type == "stream"]
    assert {output.name for output in streams} == {"stdout"}


def test_a_logger_without_records_leaves_a_word(outputs):
    table, bar = outputs["nothing"]
    assert shown(table).text == "waiting for records"
    assert "compiling" in shown(bar).text


def test_odd_values_are_shown(outputs):
    page = shown(outputs["odd"][0])
    assert "<i>=<b>" in page.text
    assert page.rows()["<script>"]["latest"] == "2"
    assert "no finite values" in page.text


def test_logs_figures_reports_and_runs_show_themselves(outputs):
    assert list(shown(outputs["logs"][0]).rows()) == ["loss", "<norm>"]
    assert outputs["logs"][0].data["text/plain"].startswith("{'loss': [")
    (figure,) = outputs["figure"]
    assert figure.data["image/png"]
    assert figure.metadata["image/png"]["width"] == 462
    assert "log" in shown(outputs["report"][0]).text
    assert shown(outputs["load"][-1]).rows(1)["00000000"]["rate"] == "0.1"


def test_a_kernel_that_ends_writes_what_is_left(outputs, folder):
    (file,) = (folder / "left").glob("*.jsonl")
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == list(range(100))
