"""The public names of every package. A change here is a change of what we promise.

Public is what an `__init__.py` re-exports (`from lox._spool import spool as spool`); all other modules are private.
"""

import ast
import importlib
import inspect

import pytest

from tests.packaging.wheels import ROOT

PUBLIC = {
    "lox": """
        LoxError Reducer __version__ find_nonfinite log log_grad logdict nolog probe spool tap
    """,
    "lox.loggers": """
        Backend BatchWriter Config ConsoleLogger CsvLogger DuplicateLoggerError Histogram JsonlLogger LaneWriter Logger
        LoggerClosedError
        LoggerLoadError
        LoggerNotFoundError LoggerOptionError LoggerState LoggerStateError LoggerWarning MemoryLogger MultiLogger
        ProgressLogger Reader ReaderError RecordError Recording Run RunExistsError RunFormatError RunLock Runs SaveLogger
        StoredRun UnreadableRunsError Writer available create get load progress
    """,
    "lox.loggers.backend": """
        GrowingFile NameFormat check_format config_in config_next_to create describe_histogram fill_format json_value merge_labels
        number_labels read_config refuse_links remove_config replace write_config
    """,
    "lox.tensorboard": "TensorBoardLogger",
    "lox.wandb": "WandbError WandbFinishedError WandbKeyError WandbLogger WandbLoginError WandbOptionError",
}
SIGNATURES = {
    "lox.log": "data where tags reduce prefix explicit lanes steps",
    "lox.spool": "fun argnames tags keep_logs interval reduce prefix capacity",
    "lox.tap": "fun callback argnames tags prefix interval batch ordered",
    "lox.nolog": "fun argnames tags",
    "lox.probe": "fun names functions scopes primitives loops prefix explicit summary",
    "lox.find_nonfinite": "fun ignore_masked",
    "lox.logdict.plot": "self keys axis center band each smooth log lanes",
    "lox.loggers.create": "spec options",
    "lox.loggers.get": "name",
    "lox.loggers.available": "",
    "lox.loggers.load": "path stack keys readers on_error",
    "lox.loggers.progress": "fun name file live",
    "lox.loggers.Reader.find": "self root files",
    "lox.loggers.Reader.read": "self run wanted",
    "lox.loggers.Runs.where": "self equal more",
    "lox.loggers.Runs.by": "self keys",
    "lox.loggers.Runs.stack": "self pad",
    "lox.loggers.Runs.to_pandas": "self",
    "lox.loggers.Runs.plot": "self keys by axis center band each smooth log",
    "lox.loggers.Histogram": "values bins range",
    "lox.loggers.Histogram.sum": "self axis",
    "lox.loggers.Histogram.describe": "self",
    "lox.loggers.Logger": "if_exists on_error processes queue_size close_timeout name time",
    "lox.loggers.Logger.init": "self key config",
    "lox.loggers.Logger.spool": "self fun state options",
    "lox.loggers.Logger.tap": "self fun state options",
    "lox.loggers.Logger.log": "self state logs prefix steps",
    "lox.loggers.Logger.flush": "self",
    "lox.loggers.Logger.close": "self timeout",
    "lox.loggers.Logger.open": "self run",
    "lox.loggers.Logger.existing": "self",
    "lox.loggers.Logger.lock": "self name",
    "lox.loggers.Logger.limit_close": "self timeout",
    "lox.loggers.Logger.formats": "self",
    "lox.loggers.backend.GrowingFile": "path",
    "lox.loggers.backend.GrowingFile.take": "self data records",
    "lox.loggers.backend.write_config": "path run",
    "lox.loggers.backend.fill_format": "owner option given run",
    "lox.loggers.backend.merge_labels": "labels",
    "lox.loggers.backend.number_labels": "labels",
    "lox.loggers.RunLock": "folder name",
    "lox.loggers.RunLock.release": "self",
    "lox.loggers.Run.format": "self text",
    "lox.loggers.Writer.write": "self logs",
    "lox.loggers.Writer.flush": "self",
    "lox.loggers.Writer.close": "self",
}
# Submodules that are public too.
MODULES = {"lox.loggers": {"backend", "kinds", "testing"}}
PACKAGES = [module for module in PUBLIC if module != "lox.loggers.backend"]


def source_folder(module):
    package = "lox-core" if module == "lox" else module.replace(".", "-")
    return ROOT / "packages" / package / "src" / module.replace(".", "/")


def source_file(module):
    if module in PACKAGES:
        return source_folder(module) / "__init__.py"
    package, _, name = module.rpartition(".")
    return source_folder(package) / f"{name}.py"


def reexported(tree):
    """Names bound by `import x as x`, also where only type checkers see it: those are promised too."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports for alias in node.names if alias.asname == alias.name}


def declared(tree):
    """Names that the file itself defines or annotates, but for private ones."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = {node.name for node in nodes}
    names |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
    return {name for name in names if not name.startswith("_") or name == "__version__"}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_of_a_package_are_these(module):
    tree = ast.parse(source_file(module).read_text())
    assert sorted(reexported(tree) | declared(tree)) == sorted(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_has_a_docstring(module):
    imported = importlib.import_module(module)
    for name in PUBLIC[module].split():
        assert getattr(imported, name).__doc__, f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", ["lox.tensorboard", "lox.wandb"])
def test_a_backend_of_lox_uses_what_any_backend_can_use(module):
    private = []
    for path in source_folder(module).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imported = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            else:
                continue
            ours = (name for name in imported if name.split(".")[0] == "lox" and not name.startswith(f"{module}."))
            private += [f"{path.name}: {name}" for name in ours if "._" in name]
    assert private == []


@pytest.mark.parametrize("module", PACKAGES)
def test_every_other_module_of_a_package_is_private(module):
    folder = source_folder(module)
    public = {path.stem for path in folder.glob("[!_]*") if path.suffix == ".py" or path.is_dir()}
    assert public == MODULES.get(module, set())


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_parameters_of_a_public_function_have_these_names(name):
    module = max((module for module in PUBLIC if name.startswith(f"{module}.")), key=len)
    found = importlib.import_module(module)
    for attribute in name.removeprefix(f"{module}.").split("."):
        found = getattr(found, attribute)
    assert list(inspect.signature(found).parameters) == SIGNATURES[name].split()


def test_the_version_is_the_one_of_the_repository():
    import lox

    assert lox.__version__ == (ROOT / "VERSION").read_text().strip()
