"""Hyperparameters, as TensorBoard's HPARAMS plugin finds them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from lox.loggers import LoggerOptionError
from lox.loggers.kinds import KindError
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import table


def sessions(logdir):
    """What the HPARAMS tab lists: for each run its hyperparameters, its metrics and how it ended."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(logdir)).Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=str(logdir)))
    experiment = context.experiment_from_metadata(
        RequestContext(), "", True, context.hparams_metadata(RequestContext(), ""), []
    )
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=statuses,
        include_metrics=True,
        col_params=[api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos],
    )
    response = list_session_groups.Handler(RequestContext(), context, "", request).run()
    return [_session(group) for group in response.session_groups]


def _session(group):
    hparams = {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
    metrics = {metric.name.tag: (metric.training_step, metric.value) for metric in group.metric_values}
    return hparams, metrics, api_pb2.Status.Name(group.sessions[0].status)


def log_run(logdir, *tables, **options):
    with TensorBoardLogger(logdir, **options) as logger:
        state = logger.init(jax.random.key(0))
        for logs in tables:
            logger.log(state, logs)


LOSS = table({"loss": np.array([3.0, 2.0])}, step=[0, 1])


def test_given_hparams_and_the_last_metrics_are_listed(tmp_path):
    given = {
        "lr": np.float32(0.5),
        "layers": 3,
        "bias": True,
        "optimiser": "adam",
        "net": {"width": 64, "shape": (2, 3)},
        "clip": None,
    }
    log_run(tmp_path, LOSS, hparams=given)
    ((hparams, metrics, status),) = sessions(tmp_path)
    assert hparams == {
        "lr": 0.5,
        "layers": 3,
        "bias": True,
        "optimiser": "adam",
        "net/width": 64,
        "net/shape": "(2, 3)",
        "clip": "None",
    }
    assert metrics == {"loss": (1, 2.0)}
    assert status == "STATUS_SUCCESS"


def test_vmapped_runs_log_the_hparams_they_differ_in(tmp_path):
    rates = np.array([0.1, 0.2, 0.4], np.float32)
    with TensorBoardLogger(tmp_path, kinds={"hp/*": "hparams"}, hparams={"env": "pong"}) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))

        def train(state, rate):
            logger.log(state, {"hp/rate": rate, "loss": rate * 10}, step=0)

        jax.vmap(train)(states, rates)
    found = sorted(sessions(tmp_path), key=lambda session: session[0]["hp/rate"])
    assert [session[0] for session in found] == [{"hp/rate": float(rate), "env": "pong"} for rate in rates]
    assert [session[1]["loss"][1] for session in found] == pytest.approx([1.0, 2.0, 4.0])


def test_a_run_that_is_still_open_is_listed(tmp_path):
    logger = TensorBoardLogger(tmp_path, hparams={"lr": 0.5})
    logger.log(logger.init(jax.random.key(0)), LOSS)
    logger.flush()
    ((hparams, _, status),) = sessions(tmp_path)
    logger.close()
    assert (hparams, status) == ({"lr": 0.5}, "STATUS_UNKNOWN")


def test_hparams_logged_at_every_step_are_constant_or_an_error(tmp_path):
    steady = table({"lr": np.full(3, 0.5), "loss": np.zeros(3)}, step=[0, 1, 2])
    log_run(tmp_path / "a", steady, steady, kinds={"lr": "hparams"})
    assert sessions(tmp_path / "a")[0][0] == {"lr": 0.5}
    changing = table({"lr": np.array([0.5, 0.25])}, step=[0, 1])
    with pytest.raises(KindError, match=r"'lr' has the values 0\.25 and 0\.5 in one run.*is a scalar"):
        log_run(tmp_path / "b", changing, kinds={"lr": "hparams"})
    with pytest.raises(KindError, match=r"'lr' has the values 0\.5 and 0\.25 in one run"):
        log_run(tmp_path / "c", steady, table({"lr": np.array([0.25])}, step=[3]), kinds={"lr": "hparams"})


def test_hparams_that_come_too_late_are_an_error(tmp_path):
    first, second = table({"lr": np.ones(1)}, step=[0]), table({"beta": np.ones(1)}, step=[0])
    with pytest.raises(
        KindError, match="'beta' is a hyperparameter, but the hyperparameters of this run are already written"
    ):
        log_run(tmp_path, first, second, kinds={"lr": "hparams", "beta": "hparams"})


def test_where_none_is_logged_the_given_ones_are_still_listed(tmp_path):
    log_run(tmp_path, LOSS, kinds={"hp/*": "hparams"}, hparams={"lr": 0.5})
    assert sessions(tmp_path)[0][0] == {"lr": 0.5}


def test_strings_can_be_hparams(tmp_path):
    log_run(tmp_path, table({"env": np.array(["pong"])}, step=[0]), kinds={"env": "hparams"})
    assert sessions(tmp_path)[0][0] == {"env": "pong"}


def test_an_array_is_no_hyperparameter(tmp_path):
    with pytest.raises(KindError, match=r"'sizes' cannot be a hyperparameter: a record has shape \(2,\)"):
        log_run(tmp_path, table({"sizes": np.ones((1, 2))}, step=[0]), kinds={"sizes": "hparams"})


@pytest.mark.parametrize("value", [np.zeros(3), object(), 1j])
def test_given_hparams_that_cannot_be_shown_are_an_error_that_names_them(tmp_path, value):
    with pytest.raises(LoggerOptionError, match=r"hparams\['net/x'\] is a .* numbers, strings and booleans"):
        TensorBoardLogger(tmp_path, hparams={"net": {"x": value}})


def test_without_hparams_the_tab_stays_empty(tmp_path):
    log_run(tmp_path, LOSS)
    assert sessions(tmp_path) == []


def test_what_init_is_told_about_each_run_is_listed(tmp_path):
    with TensorBoardLogger(tmp_path, hparams={"env": "pong", "rate": 7.0}) as logger:
        told = {"rate": jnp.float32([0.1, 0.2]), "sizes": jnp.array([[1, 2], [3, 4]])}
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2), told)
        jax.vmap(lambda state: logger.log(state, {"loss": 1.0}, step=0))(states)
    listed = sorted((hparams for hparams, _, _ in sessions(tmp_path)), key=lambda hparams: hparams["rate"])
    assert listed == [
        {"env": "pong", "rate": 0.1, "sizes": "[1, 2]"},
        {"env": "pong", "rate": 0.2, "sizes": "[3, 4]"},
    ]
