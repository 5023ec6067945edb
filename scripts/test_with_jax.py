"""Run the tests of core with any JAX: ``hatch run jax:test JAX [PYTEST ARGUMENTS]``.

``JAX`` is a version (``0.12.0``), ``newest``, a wheel, or a checkout of JAX. It is installed into the environment that this
runs in, with the jaxlib that it asks for.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys


def requirement(jax: str) -> list[str]:
    """What to install, as arguments of ``pip install``."""
    if jax == "newest":
        return ["--upgrade", "jax"]
    if re.match(r"\d+\.\d+", jax):
        return [f"jax=={jax}"]
    path = pathlib.Path(jax).resolve()
    if not path.exists():
        raise SystemExit(f"{jax!r} is neither a version, nor 'newest', nor a wheel or a checkout of JAX")
    return (
        ["--editable", str(path)] if path.is_dir() else [str(path)]
    )  # a checkout is run as it stands, and as it is edited


def main(arguments: list[str]) -> int:
    if not arguments:
        raise SystemExit(__doc__)
    jax, *rest = arguments
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    subprocess.run([*install, *requirement(jax)], check=True)
    subprocess.run([sys.executable, "-c", "import jax; print('JAX', jax.__version__, jax.__file__)"], check=True)
    pytest = [sys.executable, "-m", "pytest", "--numprocesses=auto", "--maxprocesses=8", "--timeout=600"]
    return subprocess.run([*pytest, *(rest or ["tests/core"])]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
