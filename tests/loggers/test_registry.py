"""Backends by name: what is installed, what is not, and what is broken."""

import importlib.metadata
import inspect
import pydoc
import sys
from pathlib import Path

import jax
import pytest

import lox
import lox.loggers
from lox.loggers import (
    DuplicateLoggerError,
    LoggerLoadError,
    LoggerNotFoundError,
    LoggerOptionError,
    MemoryLogger,
    MultiLogger,
    SaveLogger,
)
from tests.loggers.programs import run_alone

OURS = {"console", "csv", "jsonl", "memory", "multi", "progress", "save"}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts distributions on the path, as pip leaves them: a folder of metadata, and modules."""

    def put(distribution, points, modules=(), version="1.2.3"):
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {path}" for name, path in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[lox.loggers]", *lines, ""]))
        for name, text in dict(modules).items():
            (site / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        for name in dict(modules):
            monkeypatch.delitem(sys.modules, name, raising=False)

    return put


BACKEND = """
import lox.loggers

class {name}(lox.loggers.Logger):
    def __init__(self, path="x", *, colour="red", **options):
        super().__init__(**options)
        self.path, self.colour = path, colour

    def open(self, run):
        raise NotImplementedError
"""


def test_our_own_backends_are_registered_like_everybody_elses():
    available = lox.loggers.available()
    assert set(available) >= OURS
    assert list(available) == sorted(available)
    save = available["save"]
    assert (save.name, save.path, save.distribution) == (
        "save",
        "lox.loggers._backends.save.logger:SaveLogger",
        "lox-loggers",
    )
    assert save.version == importlib.metadata.version("lox-loggers")
    assert lox.loggers.get("save") is SaveLogger is lox.loggers.SaveLogger


def test_asking_what_is_available_imports_none_of_it(install):
    install("lox-boom", {"boom": "boom_module:BoomLogger"}, {"boom_module": "raise RuntimeError('imported')"})
    assert str(lox.loggers.available()["boom"]) == "boom_module:BoomLogger from lox-boom 1.2.3"
    out = run_alone(
        """
        lox.loggers.available(), dir(lox.loggers)
        lazy = ("rich", "wandb", "tensorboardX", "pandas", "matplotlib", "pyarrow", "pytest",
                "lox.loggers._backends.display.console")
        print([name for name in lazy if name in sys.modules])
        """
    )
    assert out == "[]\n"


def test_anybodys_backend_is_found_by_name_and_by_class(install):
    install("acme-lox", {"acme": "acme_module:AcmeLogger"}, {"acme_module": BACKEND.format(name="AcmeLogger")})
    logger = lox.loggers.create("acme", path="here", colour="blue", on_error="warn")
    assert type(logger) is lox.loggers.get("acme") is lox.loggers.AcmeLogger
    assert (logger.path, logger.colour, logger.on_error) == ("here", "blue", "warn")
    logger.close()


def test_looking_around_imports_nobody_elses_and_stumbles_over_nothing(install):
    install("boom-lox", {"boom": "boom_module:BoomLogger"}, {"boom_module": "raise RuntimeError('imported')"})
    install("save-lox", {"save": "save_module:SaveLogger"}, {"save_module": BACKEND.format(name="SaveLogger")})
    assert "BoomLogger" not in dir(lox.loggers)
    assert {"ConsoleLogger", "SaveLogger", "create"} <= set(dir(lox.loggers))
    assert not hasattr(lox.loggers, "BoomLogger")  # broken
    assert not hasattr(lox.loggers, "SaveLogger")  # claimed twice
    members = dict(inspect.getmembers(lox.loggers))
    assert "MemoryLogger" in members
    assert "boom_module" not in sys.modules
    assert "create" in pydoc.render_doc(lox.loggers)
    with pytest.raises(LoggerLoadError, match="imported"):
        _ = lox.loggers.BoomLogger


def test_a_mistake_in_a_constructor_names_the_logger(install):
    source = BACKEND.format(name="OddLogger").replace("self.path, self.colour = path, colour", "raise KeyError('x')")
    install("odd-lox", {"odd": "odd_module:OddLogger"}, {"odd_module": source})
    with pytest.raises(KeyError, match="x") as caught:
        lox.loggers.create("odd")
    assert caught.value.__notes__ == ["while making the logger 'odd', odd_module.OddLogger"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("sav", ["no logger 'sav'", "installed: ", "memory", "Did you mean 'save'"]),
        ("neptune", ["no logger 'neptune'", "pip install PACKAGE"]),
        ("tensorbord", ["Did you mean 'tensorboard'"]),
    ],
)
def test_a_name_that_is_not_installed(name, parts):
    with pytest.raises(LoggerNotFoundError) as caught:
        lox.loggers.get(name)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert isinstance(caught.value, lox.LoxError)


def test_a_logger_of_ours_that_is_not_installed_comes_with_the_command(monkeypatch):
    real = importlib.metadata.entry_points
    hidden = ("tensorboard", "wandb")
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **query: [point for point in real(**query) if point.name not in hidden],
    )
    with pytest.raises(LoggerNotFoundError, match=r"Run: pip install lox-wandb$"):
        lox.loggers.get("wandb")
    with pytest.raises(LoggerNotFoundError, match=r"Did you mean 'tensorboard'\? .* pip install lox-tensorboard$"):
        lox.loggers.get("tensorbord")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('out of cheese')", "failed to import: RuntimeError: out of cheese"),
        ("import a_module_that_nobody_has", "failed to import: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "failed to import: SystemExit: 3"),
        ("x = 1", "failed to import: AttributeError"),
        ("BrokenLogger = 3", "is not a subclass of lox.loggers.Logger, but 3"),
        ("class BrokenLogger: pass", "is not a subclass of lox.loggers.Logger, but <class 'broken_module.Bro"),
        ("import lox.loggers\nclass BrokenLogger(lox.loggers.Logger): pass", "BrokenLogger does not define open"),
    ],
)
def test_a_broken_plugin_breaks_nothing_but_itself(install, source, message):
    install("broken-lox", {"broken": "broken_module:BrokenLogger"}, {"broken_module": source})
    assert set(lox.loggers.available()) >= OURS | {"broken"}
    lox.loggers.create("memory").close()
    with pytest.raises(LoggerLoadError, match=message) as caught:
        lox.loggers.create("broken")
    assert "broken_module:BrokenLogger from broken-lox 1.2.3" in str(caught.value)
    assert (caught.value.__cause__ is None) == ("failed to import" not in message)


@pytest.mark.parametrize("name", ["two words", "a,b"])
def test_a_name_that_cannot_be_written_where_loggers_are_named_is_broken(install, name):
    install("odd-lox", {name: "fine_module:FineLogger"}, {"fine_module": BACKEND.format(name="FineLogger")})
    with pytest.raises(LoggerLoadError, match="letters, digits, '-', '_' and '.'"):
        lox.loggers.get(name)


def test_two_distributions_with_one_name_are_both_named(install):
    for distribution in ("one-lox", "other-lox"):
        module = distribution.replace("-", "_")
        install(distribution, {"twice": f"{module}:TwiceLogger"}, {module: BACKEND.format(name="TwiceLogger")})
    with pytest.raises(DuplicateLoggerError) as caught:
        lox.loggers.get("twice")
    assert "one_lox:TwiceLogger from one-lox" in str(caught.value)
    assert "other_lox:TwiceLogger from other-lox" in str(caught.value)
    with pytest.raises(DuplicateLoggerError, match="Import it from its module"):
        _ = lox.loggers.TwiceLogger
    assert len(lox.loggers.available()["twice"].rivals) == 1
    lox.loggers.create("memory").close()


def test_bad_options_are_told_with_those_there_are():
    with pytest.raises(LoggerOptionError, match=r"unexpected keyword argument 'colour'.*takes: path"):
        lox.loggers.create("save", colour="red")
    with pytest.raises(LoggerOptionError, match=r"Did you mean 'if_exists'"):
        lox.loggers.create("save", if_exist="new")
    with pytest.raises(LoggerOptionError, match="if_exists='maybe'"):
        lox.loggers.create("save", if_exists="maybe")
    with pytest.raises(LoggerOptionError, match="belong to one logger"):
        lox.loggers.create(["save", "memory"], path="x")
    with pytest.raises(LoggerOptionError, match="a name, a pair"):
        lox.loggers.create([3])
    with pytest.raises(LoggerOptionError, match="name of a logger must be a str"):
        lox.loggers.get(3)
    with pytest.raises(LoggerOptionError, match=r"SaveLogger'>; call it instead: SaveLogger\(\.\.\.\)"):
        lox.loggers.create(SaveLogger)
    with MemoryLogger() as logger, pytest.raises(LoggerOptionError, match="for several, write a list"):
        lox.loggers.create(logger)
    with pytest.raises(LoggerOptionError, match=r"create\(\['console', 'save:path=x'\]\)"):
        lox.loggers.create("console, save:path=x")
    with pytest.raises(LoggerOptionError, match="empty list. Name at least one"):
        lox.loggers.create([])


def test_create_several_as_one(tmp_path):
    memory = MemoryLogger()
    logger = lox.loggers.create([memory, ("save", {"path": tmp_path / "a"}), f"save:path={tmp_path}/b", "memory"])
    assert isinstance(logger, MultiLogger)
    with logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1})
        assert memory.logs["0000000000000000"]["x"].tolist() == [1]
    assert [type(each).__name__ for each in logger.loggers] == [
        "MemoryLogger",
        "SaveLogger",
        "SaveLogger",
        "MemoryLogger",
    ]
    for name in "ab":
        assert lox.loggers.load(tmp_path / name)["0000000000000000"]["x"].tolist() == [1]


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (None, ["ConsoleLogger"]),
        ("", ["ConsoleLogger"]),
        (" memory ", ["MemoryLogger"]),
        ("memory:queue_size=7:on_error=warn", ["MemoryLogger"]),
        ("memory, save:path=runs,", ["MemoryLogger", "SaveLogger"]),
    ],
)
def test_create_from_the_environment(monkeypatch, value, kinds):
    if value is None:
        monkeypatch.delenv("LOX_LOGGERS", raising=False)
    else:
        monkeypatch.setenv("LOX_LOGGERS", value)
    logger = lox.loggers.create()
    members = logger.loggers if isinstance(logger, MultiLogger) else [logger]
    assert [type(each).__name__ for each in members] == kinds
    if len(kinds) == 2:
        assert members[1].path == Path("runs").absolute()
    logger.close()


def test_an_unknown_name_in_the_environment_is_an_error(monkeypatch):
    monkeypatch.setenv("LOX_LOGGERS", "console,svae")
    with pytest.raises(LoggerNotFoundError, match="'svae'.*'save'"):
        lox.loggers.create()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("save", ("save", {})),
        ("save:path=runs", ("save", {"path": "runs"})),
        ("save:path=C:/runs:if_exists=resume", ("save", {"path": "C:/runs", "if_exists": "resume"})),
        ("x:n=3:f=1e-3:b=true:z=null", ("x", {"n": 3, "f": 0.001, "b": True, "z": None})),
        ("x:yes=True:no=False:z=None", ("x", {"yes": True, "no": False, "z": None})),
        ("save:path=2024", ("save", {"path": "2024"})),
        ("save:path=None", ("save", {"path": "None"})),
        ('save:path="a:b"', ("save", {"path": "a:b"})),
        ('x:l=["a,b","c:d=e"]:s="3"', ("x", {"l": ["a,b", "c:d=e"], "s": "3"})),
        ("x:url=http://host:80/a?b=c", ("x", {"url": "http://host:80/a?b=c"})),
        ("x:empty=", ("x", {"empty": ""})),
    ],
)
def test_the_language_of_the_environment_variable(text, expected):
    from lox.loggers._specs import parse_spec, split_specs

    assert parse_spec(text) == expected
    assert split_specs(f"memory, {text} ,") == ["memory", text]


@pytest.mark.parametrize(("text", "message"), [("save:runs", "not option=value"), ("save:path=a:path=b", "twice")])
def test_mistakes_in_it(text, message):
    with pytest.raises(LoggerOptionError, match=message):
        lox.loggers.create(text)


def test_attributes_that_are_not_there():
    with pytest.raises(AttributeError, match="NoSuchLogger'; the installed loggers are .*SaveLogger"):
        _ = lox.loggers.NoSuchLogger
    with pytest.raises(ImportError):
        from lox.loggers import nothing  # noqa: F401
    assert not hasattr(lox.loggers, "something")
