"""States that were restored from a checkpoint, or belong to another logger."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox.loggers
from lox.loggers import LoggerState, LoggerStateError
from lox.loggers._delivery.ids import RunIds
from tests.loggers.programs import run

TRAINING = """
path, keys, log_keys = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
with lox.loggers.SaveLogger(path, if_exists="resume") as logger:
    states = jax.vmap(logger.init)(jnp.stack([jax.random.key(key) for key in keys]))
    file = f"{path}/states.npy"
    if os.path.exists(file):
        states = jax.tree.unflatten(jax.tree.structure(states), [jnp.asarray(np.load(file))])
    np.save(file, np.asarray(states.run))
    step = len(os.listdir(path)) and int(os.path.exists(f"{path}/again"))
    open(f"{path}/again", "w").close()
    try:  # the thread may have found out before the call returns
        jax.vmap(lambda state, who: logger.log(state, {"who": who}, step=step))(states, jnp.asarray(log_keys))
        logger.flush()
    except lox.loggers.LoggerStateError as error:
        print(error)
"""


def test_a_restored_state_leads_to_the_run_of_its_key_or_is_an_error(tmp_path):
    (tmp_path / "runs").mkdir()
    assert run(TRAINING, tmp_path / "runs", [10, 11, 12], [10, 11, 12]) == ""
    # The same runs in another order; one of them is not opened.
    out = run(TRAINING, tmp_path / "runs", [12, 11], [10, 11, 12])
    assert "does not belong to this logger" in out
    assert "call init with the same key, and with if_exists='resume'" in out
    found = {int(name, 16): logs["who"].tolist() for name, logs in lox.loggers.load(tmp_path / "runs").items()}
    assert found == {10: [10], 11: [11, 11], 12: [12, 12]}


@pytest.mark.parametrize("several", [False, True])
def test_a_state_of_another_logger_is_an_error(several):
    def make():
        return lox.loggers.create(["memory", "memory"] if several else "memory")

    with make() as one, make() as other:
        state = one.init(jax.random.key(0))
        other.init(jax.random.key(0))
        with pytest.raises(LoggerStateError, match="works only with the logger whose init returned it"):
            other.log(state, {"x": 1.0})
            other.flush()
        one.log(state, {"x": 1.0})


def test_a_state_that_nobody_made_is_an_error():
    with lox.loggers.MemoryLogger() as logger:
        logger.init(jax.random.key(0))
        with pytest.raises(LoggerStateError, match="does not belong"):
            logger.log(LoggerState(run=jnp.int32(0)), {"x": 1.0})
            logger.flush()


def test_ids_are_different_for_all_runs_of_a_process_and_fit_into_an_int32():
    ids = [ids.of(name) for ids in (RunIds(), RunIds()) for name in ("a", "b", "a")]
    assert len(set(ids)) == 6
    assert np.asarray(ids, np.int32).tolist() == ids
    assert min(ids) >= 0
