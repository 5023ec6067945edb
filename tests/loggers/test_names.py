"""What `name=` makes of runs: formats, functions, safety, numbers, and one name for several loggers."""

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import CsvLogger, JsonlLogger, LoggerOptionError, MemoryLogger, MultiLogger, Run, SaveLogger
from lox.loggers._delivery.names import numbered, safe_name, short_names

CONFIG = {
    "rate": np.float32(0.1),
    "env": "CartPole",
    "net": {"width": 64, "sizes": np.array([3, 5])},
    "none": None,
    "opt/eps": 1e-8,
}


def name_of(name, config=CONFIG, key=None):
    with MemoryLogger(name=name) as logger:
        logger.init(jax.random.key(7) if key is None else key, config)
        (run,) = logger.runs
    return run.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", "baseline"),
        ("lr={rate}/seed={lane}", "lr=0.1/seed=0"),
        ("{rate:.3f}-{env:_>10}", "0.100-__CartPole"),
        ("{net.width}x{net[sizes][1]}", "64x5"),
        ("{none}", "None"),
        ("{opt/eps:.0e}", "1e-08"),
        ("{key}", "0000000000000007"),
        ("p{process}", "p0"),
        ("{{braces}}", "%7Bbraces%7D"),
        ("{env!r}", "%27CartPole%27"),
        (lambda run: f"{run.config['env']} {run.key[1]} {run.name[-2:]}", "CartPole 7 07"),
    ],
)
def test_a_format_fills_in_config_lane_key_and_process(name, expected):
    assert name_of(name) == expected


def test_an_entry_of_the_config_goes_before_a_field_of_the_same_name():
    assert name_of("{key}-{lane}", {"key": "mine"}) == "mine-0"


def test_a_lane_has_a_number_and_a_place_along_each_axis():
    with MemoryLogger(name="{lane}: {lane[0]}, {lane[1]}") as logger:
        jax.vmap(jax.vmap(logger.init))(jax.random.split(jax.random.key(0), (2, 3)))
        names = [run.name for run in logger.runs]
    assert names[1] == "1%3A 0, 1"
    assert names[5] == "5%3A 1, 2"


def test_a_place_among_lanes_that_are_not_there_is_told_at_init():
    with MemoryLogger(name="seed={lane[1]}") as logger:
        with pytest.raises(LoggerOptionError, match=r"'lane\[1\]', but this init is not vmapped; \{lane\} is 0"):
            logger.init(jax.random.key(0))
        with pytest.raises(LoggerOptionError, match=r"vmapped once: there is \{lane\[0\]\}, and \{lane\}, the number"):
            jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
            logger.flush()


@pytest.mark.parametrize("backend", ["save", "csv", "jsonl"])
def test_runs_are_found_under_the_name_that_was_given_or_the_one_that_is_stored(tmp_path, backend):
    with lox.loggers.create(backend, path=tmp_path, name="100%/{env}") as logger:
        logger.log(logger.init(jax.random.key(0), {"env": "it's: a?"}), {"loss": 1.0})
    runs = lox.loggers.load(tmp_path)
    assert list(runs) == ["100%25/it%27s%3A a%3F"]
    assert runs["100%/it's: a?"] is runs["100%25/it%27s%3A a%3F"]
    assert "100%/other" not in runs
    with pytest.raises(KeyError, match="no run 'x/../y'. Runs: 100%25"):
        runs["x/../y"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "name=3; it must be a format string"),
        ("", "name=''; it must be a format string"),
        ("{rate", r"name='\{rate' is not a format string"),
        ("{}", "has a field without a name"),
    ],
)
def test_what_is_no_format_is_refused_by_the_constructor(given, message):
    with pytest.raises(LoggerOptionError, match=message):
        MemoryLogger(name=given)


def test_an_unknown_field_is_told_while_init_is_traced():
    with MemoryLogger(name="{rat}") as logger:
        with pytest.raises(LoggerOptionError, match="'rat'"):
            jax.jit(lambda key, rate: logger.init(key, {"rate": rate}))(jax.random.key(0), 0.5)
        assert not logger.runs


@pytest.mark.parametrize("name", ["..", "a/../b", "/a", "a/", "a//b", ".", "a/ /b"])
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path, name):
    with SaveLogger(tmp_path / "runs", name=name) as logger:
        with pytest.raises(LoggerOptionError, match="would leave the folder"):
            logger.init(jax.random.key(0))
    assert not (tmp_path / "runs").exists()


def test_a_function_that_fails_costs_no_record():
    """The program may be running by then: the run keeps the name of its key, and the next call raises."""

    def fails(run):
        raise KeyError("no such rate")

    logger = MemoryLogger(name=fails)
    with pytest.raises(KeyError, match="no such rate") as caught:
        jax.jit(lambda key: logger.log(logger.init(key), {"loss": 1.0}, step=0))(jax.random.key(7))
        logger.flush()
    assert "naming the run of the key 0000000000000007" in str(caught.value.__notes__)
    assert logger.logs["0000000000000007"]["loss"].tolist() == [1.0]
    logger.close()


def test_a_function_that_returns_no_text_is_told():
    with MemoryLogger(name=lambda run: 3) as logger, pytest.raises(LoggerOptionError, match="must return a str"):
        logger.init(jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("lr=0.01/seed=3", "lr=0.01/seed=3"),
        ("a:b*c?", "a%3Ab%2Ac%3F"),
        ("100%", "100%25"),
        (".hidden", "%2Ehidden"),
        ("end.", "end%2E"),
        (" x ", "%20x%20"),
        ("con", "%63on"),
        ("LPT1.txt", "%4CPT1.txt"),
        ("back\\slash", "back%5Cslash"),
        ("new\nline", "new%0Aline"),
        ("e\u0301", "\u00e9"),
        ("\ud800", "%ED%A0%80"),
        ("größe=3 → 種 🚀", "größe=3 → 種 🚀"),
        ("zero\u200bwidth\u00a0", "zero%E2%80%8Bwidth%C2%A0"),
    ],
)
def test_names_are_safe_on_every_file_system(name, safe):
    assert safe_name("test", name) == safe


def test_long_names_stay_apart():
    names = [safe_name("test", "x" * 300 + end) for end in "ab"]
    assert len(set(names)) == 2
    assert all(len(name.encode()) < 220 for name in names)


def test_names_that_differ_in_case_only_are_numbered():
    with MemoryLogger(name="{env}") as logger:
        for env in ("Pong", "pong", "PONG"):
            logger.init(jax.random.key(0), {"env": env})
        assert [run.name for run in logger.runs] == ["Pong", "pong-2", "PONG-3"]


def test_resume_finds_each_lane_of_equal_keys_again(tmp_path):
    """In a stable order: lane i goes on with the run of lane i."""
    keys = jnp.stack([jax.random.key(7)] * 3)
    for first in (0, 2):
        with SaveLogger(tmp_path, if_exists="resume") as logger:
            states = jax.vmap(logger.init)(keys)
            for step in range(first, first + 3):
                jax.vmap(lambda state, x, step=step: logger.log(state, {"lane": x}, step=step))(states, jnp.arange(3))
    runs = lox.loggers.load(tmp_path)
    assert sorted(runs) == [*numbered("0000000000000007")][:3]
    for lane, (_, logs) in enumerate(sorted(runs.items())):
        assert logs["lane"].tolist() == [lane] * 5
        assert logs.step["lane"].tolist() == [0, 1, 2, 3, 4]


def test_replace_of_paired_seeds_keeps_all_of_them_each_time(tmp_path):
    seeds, rates = jax.random.split(jax.random.key(0), 2), jnp.array([0.1, 0.2, 0.3])
    for _ in range(2):
        with SaveLogger(tmp_path, if_exists="replace") as logger:
            init = jax.vmap(jax.vmap(logger.init, in_axes=(0, None)), in_axes=(None, 0))
            states = init(seeds, {"rate": rates})
            jax.vmap(jax.vmap(lambda s, r: logger.log(s, {"rate": r}), in_axes=(0, None)))(states, rates)
    runs = lox.loggers.load(tmp_path)
    assert sorted(float(logs["rate"][0]) for logs in runs.values()) == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3])


@pytest.mark.parametrize("backend", [SaveLogger, CsvLogger, JsonlLogger])
def test_replace_says_which_other_runs_are_there(tmp_path, caplog, backend):
    for name, number in (("old/{lane}", 3), ("old/{lane}", 2)):
        with (
            caplog.at_level(logging.WARNING, "lox.loggers"),
            backend(tmp_path, if_exists="replace", name=name) as logger,
        ):
            jax.vmap(logger.init)(jax.random.split(jax.random.key(0), number))
    (told,) = caplog.messages
    assert told.startswith(f"{backend.__name__}: 1 earlier runs were not replaced: 'old/2'")


def test_replacing_a_run_leaves_those_below_it_alone(tmp_path):
    for name in ("a", "a/b", "a"):
        with SaveLogger(tmp_path, if_exists="replace", name=name) as logger:
            logger.log(logger.init(jax.random.key(0)), {"x": 1}, step=0)
    assert np.load(tmp_path / "a/b/x.npy").tolist() == [1]
    assert np.load(tmp_path / "a/x.npy").tolist() == [1]


# Several loggers.


def test_all_loggers_of_a_multi_use_one_name(tmp_path):
    for _ in range(2):
        with lox.loggers.create(
            [("save", {"path": tmp_path / "a"}), ("csv", {"path": tmp_path / "b"}), "memory"], name="lr={rate:.1g}"
        ) as logger:
            logger.init(jax.random.key(0), {"rate": 0.5})
            names = {run.name for run in logger.runs}
    assert names == {"lr=0.5-2"}


def test_a_number_that_one_logger_needs_is_given_by_all(tmp_path):
    with SaveLogger(tmp_path / "a") as logger:
        logger.init(jax.random.key(0))
    with MultiLogger(MemoryLogger(), SaveLogger(tmp_path / "a"), CsvLogger(tmp_path / "b")) as logger:
        logger.init(jax.random.key(0))
        assert {run.name for run in logger.runs} == {"0000000000000000-2"}


def test_the_name_of_one_logger_is_that_of_the_multi(tmp_path):
    with MultiLogger(MemoryLogger(), CsvLogger(tmp_path, name="mine")) as logger:
        logger.init(jax.random.key(0))
        assert [run.name for run in logger.runs] == ["mine", "mine"]


def test_two_names_for_one_run_are_refused(tmp_path):
    with pytest.raises(LoggerOptionError, match=r"'a' \(MultiLogger\), 'b' \(CsvLogger\)"):
        MultiLogger(MemoryLogger(), CsvLogger(tmp_path, name="b"), name="a")
    with pytest.raises(LoggerOptionError, match=r"the same name in all loggers, but several were given: 'a'.*'b'"):
        MultiLogger(MemoryLogger(name="a"), MemoryLogger(name="b"))


def test_the_environment_names_runs(tmp_path, monkeypatch):
    spec = f"memory,save:path={tmp_path}:name=lr={{rate:.2g}}/seed={{lane}}:if_exists=replace"
    monkeypatch.setenv("LOX_LOGGERS", spec)
    with lox.loggers.create() as logger:
        jax.vmap(logger.init, in_axes=(0, None))(jax.random.split(jax.random.key(0), 2), {"rate": 0.25})
    assert sorted(lox.loggers.load(tmp_path)) == ["lr=0.25/seed=0", "lr=0.25/seed=1"]
    assert json.loads((tmp_path / "lr=0.25/seed=1/config.json").read_text()) == {"rate": 0.25}


def test_a_name_in_the_environment_is_text(monkeypatch):
    monkeypatch.setenv("LOX_LOGGERS", "memory:name=2024")
    with lox.loggers.create() as logger:
        logger.init(jax.random.key(0))
        assert [run.name for run in logger.runs] == ["2024"]


def test_a_run_fills_in_formats_for_its_backend():
    run = Run("x", (0, 7), config={"rate": np.float32(0.1)}, lane=3)
    assert run.format("{rate}/{lane}/{key}") == "0.1/3/0000000000000007"
    with pytest.raises(LoggerOptionError, match="'rat'"):
        run.format("{rat}")


def test_short_names_shorten_names_of_keys_only():
    assert short_names(["0000000000000007"]) == {"0000000000000007": "00000000"}
    assert short_names(["lr=0.01/seed=3"]) == {"lr=0.01/seed=3": "lr=0.01/seed=3"}
