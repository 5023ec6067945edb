"""Building the four distributions, and virtual environments to install them into."""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = ("lox-core", "lox-loggers", "lox-tensorboard", "lox-wandb")
UV = (sys.executable, "-m", "uv")


def run(*command: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command outside the repository, without what would let the repository's own sources be imported."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    if check and result.returncode:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result


def build(source: str | Path, into: Path, target: str = "wheel") -> Path:
    """Builds one distribution, by name or from its folder.

    Not isolated: hatchling is in this environment, and nothing is downloaded.
    """
    before = set(into.iterdir())
    folder = ROOT / "packages" / source
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=folder)
    (built,) = set(into.iterdir()) - before
    return built


@dataclass(frozen=True)
class Venv:
    """A virtual environment that sees nothing but what is installed into it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Venv":
        run(*UV, "venv", "--quiet", "--python", sys.executable, folder)
        return cls(folder)

    @property
    def bin(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *what: str | Path) -> None:
        """Installs with the versions that the tests run with: they are in uv's cache, and known to work."""
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(_versions_here()))
        run(*UV, "pip", "install", "--quiet", "--python", self.folder, "--constraint", constraints, *what)

    def uninstall(self, distribution: str) -> None:
        run(*UV, "pip", "uninstall", "--quiet", "--python", self.folder, distribution)

    def python(self, code: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(self.bin / "python", "-c", code, cwd=self.folder, check=check)


def editable(distributions: Iterable[str]) -> list[str | Path]:
    return [word for name in distributions for word in ("--editable", ROOT / "packages" / name)]


def _versions_here() -> list[str]:
    return [
        f"{name}=={distribution.version}"
        for distribution in importlib.metadata.distributions()
        if (name := re.sub(r"[-_.]+", "-", distribution.name).lower()) not in DISTRIBUTIONS
    ]
