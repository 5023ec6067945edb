"""Draws the pictures of the README: the demo's console on a real terminal, and the curves of what it saved.

    python -m scripts.pictures

Needs a Unix (for the terminal), rich and matplotlib.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "_static"
WIDTH, HEIGHT = 82, 40


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        screen = run_in_terminal([sys.executable, str(ROOT / "examples/demo.py")], folder)
        save_console(last_table(screen), PICTURES / "console.svg")
        plot = ["plot", ".lox", "--keys", "train/loss", "train/accuracy", "--output", str(PICTURES / "curves.png")]
        subprocess.run([sys.executable, "-m", "lox.loggers._cli.main", *plot], cwd=folder, check=True)


def run_in_terminal(command: list[str], folder: str) -> str:
    """What a command writes to a terminal of fixed size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    process = subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = bytearray()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal is gone once the last writer has left
            break
        if not part:
            break
        written += part
    if process.wait() != 0:
        raise SystemExit(written.decode(errors="replace"))
    return written.decode(errors="replace").replace("\r\n", "\n")


def last_table(screen: str) -> str:
    """The table as it was drawn last, with its colours."""
    drawings = [part for part in re.split(r"(?:\r|\x1b\[1A|\x1b\[2K)+", screen) if "8 runs" in part]
    end = re.search(r"records, [^\n]*\n", drawings[-1])
    assert end is not None, "the table has no last line"
    return drawings[-1][: end.end()]


def save_console(table: str, file: Path) -> None:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("$ hatch run demo\n\n" + table.rstrip()))
    picture = console.export_svg(title="lox", theme=MONOKAI)
    # rich points at fonts on a server; the page loads nothing from outside.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    file.write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


if __name__ == "__main__":
    main()
