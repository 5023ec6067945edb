"""The public names of lox-core, frozen: adding or removing one is a decision, not an accident."""

import inspect

import lox

PUBLIC = {"LoxError", "Reducer", "find_nonfinite", "log", "log_grad", "logdict", "nolog", "probe", "spool", "tap"}


def parameters(function):
    return [
        (p.name, p.default if p.default is not inspect.Parameter.empty else ...)
        for p in inspect.signature(function).parameters.values()
    ]


def test_public_names():
    siblings = {"loggers", "tensorboard", "wandb"}  # there once they were imported
    assert {name for name in vars(lox) if not name.startswith("_")} - siblings == PUBLIC


def test_signatures_are_those_of_the_contract():
    assert parameters(lox.log) == [
        ("data", ...),
        ("where", None),
        ("tags", ()),
        ("reduce", None),
        ("prefix", ""),
        ("explicit", False),
        ("lanes", False),
        ("steps", ...),
    ]
    assert parameters(lox.spool) == [
        ("fun", ...),
        ("argnames", None),
        ("tags", None),
        ("keep_logs", False),
        ("interval", None),
        ("reduce", None),
        ("prefix", ""),
        ("capacity", None),
    ]
    assert parameters(lox.tap) == [
        ("fun", ...),
        ("callback", None),
        ("argnames", None),
        ("tags", None),
        ("prefix", ""),
        ("interval", None),
        ("batch", None),
        ("ordered", False),
    ]
    assert parameters(lox.nolog) == [("fun", ...), ("argnames", None), ("tags", None)]
    assert [name for name, _ in parameters(lox.log_grad)][:2] == ["x", "name"]
    assert {"init", "update", "finish"} <= set(vars(lox.Reducer))


def test_options_of_log_can_only_be_given_by_name():
    kinds = [p.kind for p in inspect.signature(lox.log).parameters.values()]
    assert kinds[1:-1] == [inspect.Parameter.KEYWORD_ONLY] * (len(kinds) - 2)
    assert kinds[-1] == inspect.Parameter.VAR_KEYWORD


def test_errors_are_value_errors():
    assert issubclass(lox.LoxError, ValueError)


def test_everything_public_says_what_it_does():
    for name in PUBLIC:
        assert (getattr(lox, name).__doc__ or "").strip(), name
