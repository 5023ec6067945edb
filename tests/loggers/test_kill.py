"""Real processes: kill -9, and reading while another process writes."""

import time

import numpy as np

import lox.loggers
from tests.loggers.programs import finish, run, start


def only_run(path):
    (logs,) = lox.loggers.load(path).values()
    return logs


def test_after_kill_9_what_flush_acknowledged_is_there_and_whole(tmp_path):
    process = start(
        """
        logger = lox.loggers.SaveLogger(sys.argv[1])
        state = logger.init(jax.random.key(0))
        step = 0
        while True:
            for _ in range(100):
                logger.log(state, {"x": float(step), "v": np.full((3,), step), "n": {"a": step}}, step=step)
                step += 1
            logger.flush()
            print(step, flush=True)
        """,
        tmp_path,
    )
    acknowledged = 0
    for _ in range(10):
        acknowledged = int(process.stdout.readline())
    process.kill()
    rest, _ = finish(process)
    acknowledged = max([acknowledged, *map(int, rest.split())])
    logs = only_run(tmp_path)
    for key, value in (("x", logs["x"]), ("v", logs["v"][:, 0]), ("n", logs["n"]["a"])):
        assert acknowledged <= len(value)
        assert value.tolist() == list(range(len(value))) == logs.step[key].tolist()
    folder = tmp_path / "0000000000000000"
    for file in folder.glob("*.npy"):
        rows = np.load(file, allow_pickle=False)
        assert len(rows) >= acknowledged
        assert np.array_equal(np.load(file, mmap_mode="r"), rows)


def test_a_run_that_was_killed_is_resumed_without_a_gap_or_a_repeat(tmp_path):
    program = """
    logger = lox.loggers.SaveLogger(sys.argv[1], if_exists="resume")
    state = logger.init(jax.random.key(0))
    for step in range(int(sys.argv[2])):
        logger.log(state, {"x": float(step), "v": np.full((3,), step)}, step=step)
        if step % 50 == 0 and sys.argv[3] == "forever":
            print(step, flush=True)
            time.sleep(0.001)
    """
    process = start(program, tmp_path, 10**6, "forever")
    while int(process.stdout.readline()) < 5000 or "x" not in only_run(tmp_path):  # rows are flushed each second
        pass
    process.kill()
    finish(process)
    before = len(only_run(tmp_path)["x"])
    assert before > 0
    run(program, tmp_path, before + 500, "once")
    logs = only_run(tmp_path)
    for key in ("x", "v"):
        assert logs.step[key].tolist() == list(range(before + 500))
    assert logs["v"][:, 0].tolist() == list(range(before + 500))


def test_files_can_be_loaded_at_any_moment_while_they_are_written(tmp_path):
    process = start(
        """
        logger = lox.loggers.SaveLogger(sys.argv[1])
        state = logger.init(jax.random.key(0))
        for step in range(10**9):
            logger.log(state, {"x": step}, step=step)
            if step % 7 == 0:
                logger.flush()
        """,
        tmp_path,
    )
    file = tmp_path / "0000000000000000" / "x.npy"
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    longest = looks = 0
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for rows in (np.load(file), np.load(file, mmap_mode="r")):
            assert len(rows) >= longest
            longest = len(rows)
            assert np.array_equal(rows, np.arange(longest))
            looks += 1
    process.kill()
    finish(process)
    assert longest > 100
    assert looks > 100
