"""What `import lox` checks, and the errors for packages that are not installed.

One import namespace is spread over four distributions: lox-core ships `lox` itself, and each of the others one subpackage. If a
subpackage is not installed, the error has the `pip install` to run. If the JAX version does not work with lox, the error lists
those that do. Python's own errors would show neither.
"""

import importlib.metadata
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax

OLDEST_JAX = (0, 9)
NEWEST_TESTED_JAX = (0, 12)

SIBLINGS = {
    "lox.loggers": "lox-loggers",
    "lox.tensorboard": "lox-tensorboard",
    "lox.wandb": "lox-wandb",
}


def check_jax_version(version: str | None = None) -> None:
    """Raises ImportError if `version` (by default the JAX that is imported) is too old for lox."""
    found = jax.__version__ if version is None else version
    if _minor(found) < OLDEST_JAX:
        raise ImportError(
            f"lox does not work with JAX {found}. {_supported()}. "
            f'Upgrade JAX: pip install --upgrade "jax>={_dotted(OLDEST_JAX)}"'
        )


@contextmanager
def explain_jax_failures(version: str | None = None) -> Iterator[None]:
    """Around imports: if one fails under a JAX that is newer than those lox was tested with, the error mentions it.

    Newer versions are not refused, because most of them work. But lox uses a few internals of JAX, and if one of them has
    moved, the failure alone would not show that the version is the reason.
    """
    found = jax.__version__ if version is None else version
    try:
        yield
    except (ImportError, AttributeError) as error:
        if _minor(found) <= NEWEST_TESTED_JAX:
            raise
        raise ImportError(
            f"lox could not be imported with JAX {found} ({error}). {_supported()}. Upgrade lox, or install "
            f'an older JAX: pip install "jax<{NEWEST_TESTED_JAX[0]}.{NEWEST_TESTED_JAX[1] + 1}"'
        ) from error


class MissingSiblingFinder:
    """The last finder on `sys.meta_path`. It is reached for a sibling package only if no other finder has found it."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in SIBLINGS:
            return None
        raise ModuleNotFoundError(missing_sibling(fullname), name=fullname)


def missing_sibling(module: str) -> str:
    """The message for a sibling that is not installed."""
    return f"{module} is not installed. Install it: pip install {SIBLINGS[module]}"


def install_sibling_hints() -> None:
    """Makes `import lox.loggers` without lox-loggers say what to install. Calling it again changes nothing."""
    if MissingSiblingFinder not in sys.meta_path:
        sys.meta_path.append(MissingSiblingFinder)


def own_version() -> str:
    """The version of all four distributions: siblings are pinned to it."""
    return importlib.metadata.version("lox-core")


def missing_attribute(name: str) -> AttributeError:
    """The error of `lox.__getattr__`. The likely mistake is a sibling package that was not imported yet."""
    module = f"lox.{name}"
    if module not in SIBLINGS:
        return AttributeError(f"module 'lox' has no attribute {name!r}", name=name)
    return AttributeError(f"`import lox` does not import {module}: write `import {module}`", name=name)


def _minor(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise ImportError(f"lox cannot read the version of JAX, {version!r}. {_supported()}")
    return int(numbers[1]), int(numbers[2])


def _supported() -> str:
    return f"It supports JAX {_dotted(OLDEST_JAX)} and newer, and is tested up to {_dotted(NEWEST_TESTED_JAX)}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
