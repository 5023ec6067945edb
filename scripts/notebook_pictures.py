"""Runs examples/quickstart.ipynb, saves it with its outputs, and photographs them for docs/notebooks.md and the README.

    python -m scripts.notebook_pictures          # all of it
    python -m scripts.notebook_pictures --saved  # only the pictures, of the outputs that are saved

Needs nbclient, ipykernel, nbconvert, selenium, pillow, and a chromium with its driver.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbclient
import nbconvert
import nbformat

from tests.tensorboard.server import page

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
PICTURES = ROOT / "docs" / "_static"
WIDTH = 980
COLOURS = 128  # of a picture: few are enough for tables and curves, and its file is small
# The name of each picture, and what is in the code of the cell whose output it shows.
SHOWN = {
    "logs": "params, logs =",
    "lanes": "_, lanes =",
    "progress": '"progress"',
    "console": '"console"',
    "runs": "runs = lox.loggers.load",
    "report": "find_nonfinite",
}


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if "--saved" not in sys.argv:
        run(notebook)
        nbformat.write(notebook, NOTEBOOK)
    for theme in ("light", "dark"):
        photograph(notebook, theme)


def run(notebook: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False)
        client.resources = {"metadata": {"path": folder}}
        client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:  # where the kernel keeps the code of a cell says nothing to a reader
        for output in cell.get("outputs", []):
            for kind, text in output.get("data", {}).items():
                if isinstance(text, str) and kind.startswith("text/"):
                    output["data"][kind] = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "quickstart.ipynb", text)


def photograph(notebook: Any, theme: str) -> None:
    """The outputs as JupyterLab shows them."""
    html, _ = nbconvert.HTMLExporter(theme=theme, embed_images=True).from_notebook_node(notebook)
    html = re.sub(r"<script[^>]*src=.*?</script>", "", html, flags=re.DOTALL)  # loads what only formulas need
    with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
        file.write(html)
        file.flush()
        with page(f"file://{file.name}") as driver:
            driver.set_window_size(WIDTH, 5000)
            time.sleep(1)
            for name, code in SHOWN.items():
                save(cell_of(driver, code).screenshot_as_png, PICTURES / f"notebook-{name}-{theme}.png")


def cell_of(driver: Any, code: str) -> Any:
    (cell,) = [cell for cell in driver.find_elements("css selector", ".jp-CodeCell") if code in cell.text]
    return cell


def save(picture: bytes, file: Path) -> None:
    from PIL import Image

    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
