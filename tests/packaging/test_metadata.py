"""What the four distributions say of themselves, and what is in them."""

import email
import importlib.util
import re
import tarfile
import tomllib
import zipfile

import pytest

from tests.packaging.wheels import DISTRIBUTIONS, ROOT, build

SUBPACKAGES = {
    "lox-core": "lox",
    "lox-loggers": "lox/loggers",
    "lox-tensorboard": "lox/tensorboard",
    "lox-wandb": "lox/wandb",
}
# The arrows: core <- loggers <- wandb, tensorboard, and never back.
SIBLINGS_NEEDED = {
    "lox-core": [],
    "lox-loggers": ["lox-core"],
    "lox-tensorboard": ["lox-loggers"],
    "lox-wandb": ["lox-loggers"],
}


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements_of(wheel):
    """Names of what an installation without extras requires."""
    lines = metadata_of(wheel).get_all("Requires-Dist") or []
    return [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]


def load_version_script():
    spec = importlib.util.spec_from_file_location("version_script", ROOT / "scripts/version.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_file_is_in_two_wheels(wheels):
    files = [file for wheel in wheels.values() for file in files_of(wheel)]
    assert sorted(set(files)) == sorted(files)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_holds_its_own_subpackage_and_nothing_else(wheels, name):
    for file in files_of(wheels[name]):
        assert file.startswith((f"{SUBPACKAGES[name]}/", f"{name.replace('-', '_')}-")), file
    assert f"{SUBPACKAGES[name]}/py.typed" in files_of(wheels[name])
    assert f"{SUBPACKAGES[name]}/__init__.py" in files_of(wheels[name])


def test_only_core_ships_the_init_of_the_namespace(wheels):
    assert [name for name in DISTRIBUTIONS if "lox/__init__.py" in files_of(wheels[name])] == ["lox-core"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_metadata_is_complete(wheels, name):
    metadata = metadata_of(wheels[name])
    assert metadata["Name"] == name
    assert metadata["Version"] == (ROOT / "VERSION").read_text().strip()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith(f"# {name}\n")
    urls = {url.split(",")[0] for url in metadata.get_all("Project-URL")}
    assert urls == {"Homepage", "Source", "Documentation", "Issues", "Changelog"}
    assert "Typing :: Typed" in metadata.get_all("Classifier")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_siblings_are_pinned_to_the_same_version_and_arrows_never_point_back(wheels, name):
    version = (ROOT / "VERSION").read_text().strip()
    needed = [line for line in metadata_of(wheels[name]).get_all("Requires-Dist") if line.startswith("lox-")]
    assert needed == [f"{sibling}=={version}" for sibling in SIBLINGS_NEEDED[name]]


def test_core_depends_on_jax_and_numpy_alone(wheels):
    assert requirements_of(wheels["lox-core"]) == ["jax", "numpy"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_built_from_the_sdist_is_the_same(wheels, name, tmp_path):
    sdist = build(name, tmp_path, target="sdist")
    with tarfile.open(sdist) as archive:
        # Python 3.11.3 and older have no filters; from 3.12 on, extracting without one is deprecated.
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    again = tmp_path / "again"
    again.mkdir()
    assert files_of(build(unpacked, again)) == files_of(wheels[name])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_licence_of_a_package_is_the_licence_of_the_repository(name):
    assert (ROOT / "packages" / name / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_pyproject_agrees_with_the_version_file():
    assert load_version_script().differences() == []


def test_the_version_script_changes_the_version_and_the_pins_and_nothing_else():
    script = load_version_script()
    for name in DISTRIBUTIONS:
        text = (ROOT / "packages" / name / "pyproject.toml").read_text()
        before, after = tomllib.loads(text)["project"], tomllib.loads(script.stamp(text, "9.8.7rc1"))["project"]
        assert after.pop("version") == "9.8.7rc1"
        pins = [line for line in after.pop("dependencies") if line.startswith("lox-")]
        assert pins == [f"{sibling}==9.8.7rc1" for sibling in SIBLINGS_NEEDED[name]]
        del before["version"], before["dependencies"]
        assert before == after


def test_the_version_script_refuses_what_is_not_a_version():
    with pytest.raises(SystemExit, match="'1.2' is not a version"):
        load_version_script().set_version("1.2")
