"""Draws the picture of docs/reading.md, from the program on that page.

python -m scripts.reading_picture
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

from lox.loggers._cli.main import main as lox

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "_static" / "reading-curves.png"


def main() -> None:
    page = (ROOT / "docs" / "reading.md").read_text()
    program = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile(program, "reading.md", "exec"), {})
        lox(["plot", "runs/reading/sweep", "--by", "rate", "--band", "ci95", "-o", str(PICTURE)])


if __name__ == "__main__":
    main()
