"""Real processes: interpreter exit, fork, Ctrl-C, and several JAX processes."""

import signal
import socket
import time

import numpy as np
import pytest

import lox.loggers
from tests.loggers.programs import finish, run, run_alone, start


def only_run(path):
    (logs,) = lox.loggers.load(path).values()
    return logs


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "del logger", "os.kill(os.getpid(), signal.SIGINT)"])
def test_everything_is_written_when_the_interpreter_ends(tmp_path, ending):
    """Without flush or close, with the program still running on the device when Python is through."""
    process = start(
        f"""
        logger = lox.loggers.SaveLogger(sys.argv[1])
        state = logger.init(jax.random.key(0))
        jax.jit(logger.tap(scan, state))(jnp.arange(2000))
        logger.log(state, {{"last": 1}})
        {ending}
        """,
        tmp_path,
    )
    _, err = finish(process)
    assert process.returncode == (0 if "kill" not in ending else -signal.SIGINT), err
    assert "Exception" not in err, err
    logs = only_run(tmp_path)
    assert logs["total"].tolist() == np.cumsum(np.arange(2000)).tolist()
    assert logs["last"].tolist() == [1]


def test_everything_is_written_when_the_program_dies_of_an_exception(tmp_path):
    process = start(
        """
        logger = lox.loggers.create(["memory", ("save", {"path": sys.argv[1]}), ("jsonl", {"path": sys.argv[1]})])
        state = logger.init(jax.random.key(0))
        logger.spool(scan, state)(jnp.arange(100))
        raise RuntimeError("my own mistake")
        """,
        tmp_path,
    )
    _, err = finish(process)
    assert process.returncode == 1
    assert "my own mistake" in err
    assert only_run(tmp_path)["total"].tolist() == np.cumsum(np.arange(100)).tolist()
    assert len((tmp_path / "0000000000000000.jsonl").read_text().splitlines()) == 100


def test_a_backend_that_fails_at_exit_is_told_on_stderr():
    process = start(
        """
        class Broken(lox.loggers.Logger):
            def open(self, run):
                return Writer()
        class Writer:
            def write(self, logs):
                raise OSError("no space left")
            def flush(self): pass
            def close(self): pass
        logger = Broken()
        logger.log(logger.init(jax.random.key(0)), {"x": 1})
        """
    )
    _, err = finish(process)
    assert process.returncode == 0
    assert "LoggerWarning: Broken: OSError: no space left" in err


def test_a_logger_that_is_first_used_when_the_interpreter_ends_still_writes(tmp_path):
    """No thread can be started by then, from Python 3.12 on."""
    run(
        """
        import atexit

        @atexit.register
        def last_words():
            logger = lox.loggers.SaveLogger(sys.argv[1])
            state = logger.init(jax.random.key(0))
            for i in range(10):
                logger.log(state, {"x": i}, step=i)
        """,
        tmp_path,
    )
    assert only_run(tmp_path)["x"].tolist() == list(range(10))


def test_a_forked_child_neither_writes_nor_hangs(tmp_path):
    out = run(
        """
        import gc, io, warnings
        from lox.loggers._delivery.at_exit import _close_at_exit
        warnings.simplefilter("ignore")                # JAX warns of every fork
        lines = io.StringIO()
        loggers = [
            lox.loggers.MemoryLogger(),
            lox.loggers.ConsoleLogger(file=lines),
            lox.loggers.ProgressLogger(11, file=lines),
            *(lox.loggers.create(name, path=sys.argv[1]) for name in ("save", "csv", "jsonl")),
        ]
        states = [logger.init(jax.random.key(0)) for logger in loggers]

        def log(step):
            for logger, state in zip(loggers, states):
                logger.log(state, {"x": step}, step=step)

        for step in range(10):
            log(step)                                  # some of it may still be queued when we fork
        children = []
        for way in ("close", "let go"):
            child = os.fork()
            if child == 0:
                for step in range(100, 110):
                    log(step)
                for logger in loggers if way == "close" else ():
                    logger.flush()
                    logger.close()
                loggers = logger = None
                gc.collect()
                _close_at_exit()
                os._exit(0)                            # as multiprocessing does: JAX's own handlers may crash here
            children.append(os.waitpid(child, 0)[1])
        log(10)
        (logs,) = loggers[0].logs.values()
        for logger in loggers:
            logger.close()
        print(children, logs["x"].tolist(), "x=10" in lines.getvalue(), "x=10" in lines.getvalue().replace("x=10 ", ""))
        """,
        tmp_path,
    )
    assert out == f"[0, 0] {list(range(11))} True False\n"
    assert only_run(tmp_path).step["x"].tolist() == list(range(11))
    assert len((tmp_path / "0000000000000000.csv").read_text().splitlines()) == 12
    assert len((tmp_path / "0000000000000000.jsonl").read_text().splitlines()) == 11


def test_ctrl_c_ends_the_program_at_once_and_loses_nothing(tmp_path):
    process = start(
        """
        import gc
        gc.callbacks.clear()  # an interrupt that arrives in JAX's own is ignored
        logger = lox.loggers.SaveLogger(sys.argv[1], queue_size=4)
        state = logger.init(jax.random.key(0))
        try:
            for step in range(10**9):
                logger.log(state, {"x": step}, step=step)
                if step == 1000:
                    print("running", flush=True)
        except KeyboardInterrupt:
            print(step, flush=True)
            raise
        """,
        tmp_path,
    )
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    steps = only_run(tmp_path).step["x"].tolist()
    assert steps == list(range(len(steps)))
    assert len(steps) >= int(out)


def test_ctrl_c_while_waiting_for_a_stuck_backend_comes_through():
    process = start(
        """
        class Stuck(lox.loggers.Logger):
            def open(self, run):
                return Writer()
        class Writer:
            def write(self, logs): time.sleep(1000)
            def flush(self): pass
            def close(self): pass
        logger = Stuck(queue_size=1)
        state = logger.init(jax.random.key(0))
        try:
            for i in range(10):
                print(i, flush=True)
                logger.log(state, {"x": i})
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(3)
        """
    )
    assert process.stdout.readline() == "0\n"
    assert process.stdout.readline() == "1\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = finish(process, 30)
    assert "interrupted" in out, err
    assert process.returncode == 3


@pytest.mark.parametrize("processes", ["first", "all"])
def test_with_several_jax_processes(tmp_path, processes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = """
    jax.config.update("jax_num_cpu_devices", 1)
    index = int(sys.argv[2])
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", num_processes=2, process_id=index)
    logger = lox.loggers.SaveLogger(sys.argv[1], processes=sys.argv[4])
    state = logger.init(jax.random.key(0))
    logger.spool(scan, state)(jnp.arange(3 + index))
    logger.close()
    print([run.process_index for run in logger.runs])
    """
    started = [start(program, tmp_path, index, port, processes) for index in range(2)]
    for process in started:
        _, err = finish(process)
        assert process.returncode == 0, err
    runs = lox.loggers.load(tmp_path)
    if processes == "first":
        assert {name: logs["total"].tolist() for name, logs in runs.items()} == {"0000000000000000": [0, 1, 3]}
    else:
        assert {name: logs["total"].tolist() for name, logs in runs.items()} == {
            "0000000000000000-p0": [0, 1, 3],
            "0000000000000000-p1": [0, 1, 3, 6],
        }


def test_importing_and_constructing_start_no_backend_of_jax_and_no_thread():
    out = run_alone(
        """
        import threading
        from jax._src import xla_bridge
        logger = lox.loggers.create(["console", "memory", "progress"])
        print(xla_bridge.backends_are_initialized(), threading.active_count(), "rich" in sys.modules)
        """
    )
    assert out == "False 1 False\n"
