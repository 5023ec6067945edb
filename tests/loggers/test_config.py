"""Configs with arrays and static values side by side, under every transformation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lox.loggers import Config, LoggerOptionError, create, load

KEYS = jax.random.split(jax.random.key(0), 3)
RATES = jnp.array([0.1, 0.01, 0.001])
STATIC = {"env": "CartPole", "net": {"width": 8, "norm": None, "sizes": [1, 2.5, "x"]}, "on": True}


def configs(init, **options):
    with create("memory", **options) as logger:
        init(logger)
        return list(logger.configs.values())


@pytest.mark.parametrize(
    "init",
    [
        lambda logger: jax.vmap(logger.init)(KEYS, Config(STATIC, rate=RATES)),
        lambda logger: jax.jit(jax.vmap(logger.init))(KEYS, Config({**STATIC, "rate": RATES})),
        lambda logger: jax.vmap(jax.jit(logger.init))(KEYS, Config(STATIC, rate=np.asarray(RATES))),
        lambda logger: jax.vmap(logger.init, in_axes=(0, {**dict.fromkeys(STATIC), "rate": 0}))(
            KEYS, {**STATIC, "rate": RATES}
        ),
        lambda logger: jax.vmap(lambda key, rate: logger.init(key, {**STATIC, "rate": rate}))(KEYS, RATES),
        lambda logger: jax.vmap(lambda key, rate: logger.init(key, Config(STATIC, rate=rate)))(KEYS, RATES),
        lambda logger: [logger.init(key, Config(STATIC, rate=rate)) for key, rate in zip(KEYS, RATES, strict=True)],
    ],
)
def test_text_numbers_and_nested_values_stand_beside_mapped_arrays(init):
    found = configs(init)
    assert found == [{**STATIC, "rate": rate} for rate in (0.1, 0.01, 0.001)]


def test_a_config_keeps_its_order_and_names_runs(tmp_path):
    config = Config(zeta="a", rate=RATES, alpha=Config(deep=RATES * 2, text="b"))
    with create(["memory", f"save:path={tmp_path}"], name="{zeta}-{alpha[text]}/{rate}/{alpha.deep:.1g}") as logger:
        jax.vmap(logger.init)(KEYS, config)
        names = sorted({run.name for run in logger.runs})
    assert names == ["a-b/0.001/0.002", "a-b/0.01/0.02", "a-b/0.1/0.2"]
    runs = load(tmp_path)
    assert list(runs.configs["a-b/0.01/0.02"]) == ["zeta", "rate", "alpha"]
    assert sorted(runs.by("alpha/deep")) == pytest.approx([0.002, 0.02, 0.2])


def test_a_dataclass_is_a_config_too():
    @dataclasses.dataclass
    class Net:
        width: int = 4
        kind: str = "mlp"

    @dataclasses.dataclass
    class Settings:
        rate: jax.Array
        net: Net

    (first, *_) = configs(lambda logger: jax.vmap(logger.init)(KEYS, Config(Settings(RATES, Net()))))
    assert first == {"rate": 0.1, "net": {"width": 4, "kind": "mlp"}}


def test_values_that_are_equal_but_of_other_types_are_other_settings():
    """JAX compares what is static to find a program that it has compiled."""
    seen = []
    with create("memory", if_exists="new") as logger:
        init = jax.jit(logger.init)
        for value in (1, True, 1.0, "1", 0.0, -0.0, None, np.float32(1)):
            init(KEYS[0], Config(value=value))
            seen.append(value)
        found = [config["value"] for config in logger.configs.values()]
    assert [(type(value).__name__, str(value)) for value in found[:-1]] == [
        (type(value).__name__, str(value)) for value in seen[:-1]
    ]
    assert found[-1] == 1.0


def test_a_config_without_arrays_and_an_empty_one():
    assert configs(lambda logger: jax.vmap(logger.init)(KEYS, Config(env="x"))) == [{"env": "x"}] * 3
    assert configs(lambda logger: jax.vmap(logger.init)(KEYS, Config())) == [{}] * 3


def test_arrays_of_text_are_the_same_in_all_lanes():
    layers = np.array(["conv", "dense"] * 2000)
    found = configs(lambda logger: jax.jit(jax.vmap(logger.init))(KEYS, Config(layers=layers, rate=RATES)))
    assert [list(config["layers"]) for config in found] == [list(layers)] * 3
    other = layers.copy()
    other[1000] = "norm"
    assert jax.tree.structure(Config(layers=layers)) != jax.tree.structure(Config(layers=other))
    assert jax.tree.structure(Config(layers=layers)) == jax.tree.structure(Config(layers=layers.copy()))


def test_it_is_a_mapping_and_a_pytree_of_its_arrays():
    config = Config(rate=RATES, env="x")
    assert (dict(config)["env"], len(config), list(config)) == ("x", 2, ["rate", "env"])
    doubled = jax.tree.map(lambda leaf: 2 * leaf, config)
    np.testing.assert_allclose(doubled["rate"], 2 * RATES)
    assert doubled["env"] == "x"
    assert "env" in repr(config)


def test_what_cannot_be_kept_is_an_error_that_names_it():
    with create("memory") as logger:
        with pytest.raises(LoggerOptionError, match=r"config\['net'\]\['act'\] is a function"):
            jax.vmap(logger.init)(KEYS, Config(net={"act": lambda x: x}))
        with pytest.raises(LoggerOptionError, match="the names in a config must be str; config has 3"):
            Config({3: 1})
        with pytest.raises(LoggerOptionError, match="must map names to values; got str"):
            Config("rate")
    assert not logger.configs
