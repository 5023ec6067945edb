"""Draws the picture of docs/tensorboard.md: runs the page's first example, and photographs TensorBoard showing it.

    python -m scripts.tensorboard_picture

Needs tensorboard, selenium, and a chromium with its driver.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

from tests.tensorboard.server import page, serve, wait_for

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "_static" / "tensorboard-sweep.png"
RUNS = 8


def main() -> None:
    (example, *_) = re.findall(r"```python\n(.*?)```", (DOCS / "tensorboard.md").read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(example, "docs/tensorboard.md", "exec"), {})
        with serve(Path("runs/tensorboard/sweep"), Path("log.txt"), fast=False) as server:
            wait_for(lambda: len(server.runs()) == RUNS, "the runs")
            with page(f"{server.url}?smoothing=0.6#timeseries") as driver:
                driver.set_window_size(1280, 860)
                wait_for(lambda: driver.find_elements("css selector", "scalar-card line-chart"), "the curves")
                driver.find_element("css selector", "button[aria-label='Close side pane']").click()
                time.sleep(5)  # until everything has been drawn and faded in
                driver.save_screenshot(str(PICTURE))


if __name__ == "__main__":
    main()
