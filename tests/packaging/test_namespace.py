"""The version check and the hints for missing siblings, without building anything."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

from lox import _namespace


@pytest.mark.parametrize("version", ["0.8.3", "0.4.38", "0.0.1", "0.8.99.dev20250101"])
def test_a_jax_that_is_too_old_is_refused_and_the_supported_ones_are_named(version):
    with pytest.raises(ImportError, match=r"It supports JAX 0\.9 and newer, and is tested up to 0\.12") as raised:
        _namespace.check_jax_version(version)
    assert version in str(raised.value)
    assert 'pip install --upgrade "jax>=0.9"' in str(raised.value)


@pytest.mark.parametrize("version", ["0.9.0", "0.9.0.1", "0.10.2", "0.12.0.1", "0.13.0.dev20261101", "1.0.0"])
def test_supported_and_newer_versions_of_jax_are_let_through(version):
    _namespace.check_jax_version(version)


def test_the_jax_of_this_environment_is_supported():
    _namespace.check_jax_version()


@pytest.mark.parametrize("failure", [ImportError("no scan_p"), AttributeError("no scan_p")])
def test_a_failing_import_under_an_untested_jax_says_that_the_version_is_the_reason(failure):
    with pytest.raises(ImportError, match=r"JAX 0\.13\.1 \(no scan_p\).*tested up to 0\.12") as raised:
        with _namespace.explain_jax_failures("0.13.1"):
            raise failure
    assert raised.value.__cause__ is failure


def test_a_failing_import_under_a_tested_jax_is_left_alone():
    failure = ImportError("no scan_p")
    with pytest.raises(ImportError) as raised, _namespace.explain_jax_failures("0.12.0.1"):
        raise failure
    assert raised.value is failure


@pytest.mark.parametrize("module, distribution", _namespace.SIBLINGS.items())
def test_the_finder_names_the_package_to_install(module, distribution):
    with pytest.raises(ModuleNotFoundError, match=rf"{module} is not installed.*pip install {distribution}$") as raised:
        _namespace.MissingSiblingFinder.find_spec(module)
    assert raised.value.name == module


@pytest.mark.parametrize("module", ["lox.nothing_of_the_kind", "numpyy", "lox", "loggers"])
def test_the_finder_stays_out_of_every_other_import(module):
    assert _namespace.MissingSiblingFinder.find_spec(module) is None


def test_importing_lox_installs_the_finder_and_doing_it_again_changes_nothing():
    importlib.import_module("lox")
    assert sys.meta_path.count(_namespace.MissingSiblingFinder) == 1
    _namespace.install_sibling_hints()
    assert sys.meta_path.count(_namespace.MissingSiblingFinder) == 1


def test_an_unknown_submodule_is_still_plainly_missing():
    with pytest.raises(ModuleNotFoundError, match="No module named 'lox.nothing_of_the_kind'"):
        importlib.import_module("lox.nothing_of_the_kind")
    assert importlib.util.find_spec("lox.nothing_of_the_kind") is None


def test_an_attribute_that_is_a_sibling_says_to_import_it():
    assert "write `import lox.wandb`" in str(_namespace.missing_attribute("wandb"))


def test_an_attribute_that_does_not_exist_is_plainly_missing():
    lox = importlib.import_module("lox")
    with pytest.raises(AttributeError, match="^module 'lox' has no attribute 'spol'$"):
        lox.spol  # noqa: B018


def test_import_lox_with_a_jax_that_is_too_old_fails_with_the_supported_versions():
    code = "import jax; jax.__version__ = '0.8.3'; import lox"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode
    assert result.stderr.splitlines()[-1].startswith("ImportError: lox does not work with JAX 0.8.3. It supports JAX")
