"""A real TensorBoard, and a real browser that looks at its page."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 120  # seconds; only a machine that is stuck reaches it


def wait_for(look: Callable[[], T], what: str) -> T:
    """Looks again and again until there is something to see."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE} s for {what}")
        time.sleep(0.2)
    return seen


class Server:
    """The page's own interface to the runs below a folder."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}data/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)

    def runs(self) -> list[str]:
        runs: list[str] = self.get("runs")
        return runs

    def scalars(self, run: str, tag: str) -> list[tuple[int, float]]:
        """Steps and values of one curve."""
        return [(step, value) for _, step, value in self.get("plugin/scalars/scalars", run=run, tag=tag)]


@contextlib.contextmanager
def serve(logdir: Path, log: Path, *, fast: bool) -> Iterator[Server]:
    """fast: with TensorBoard's data server, which reads files by itself, or all in Python."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    command += [f"--load_fast={str(fast).lower()}", "--reload_interval", "1", "--samples_per_plugin", "scalars=100000"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:

        def address() -> re.Match[str] | None:
            if process.poll() is not None:
                raise RuntimeError(f"TensorBoard ended by itself:\n{log.read_text()}")
            return re.search(r"at (http://127\.0\.0\.1:\d+/)", log.read_text())

        try:
            yield Server(wait_for(address, "TensorBoard's address")[1])
        finally:
            process.terminate()


def browser() -> tuple[str, str] | None:
    """The programs of a browser and its driver, where both are installed."""
    found = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    return found if all(found) else None  # type: ignore[return-value]


@contextlib.contextmanager
def page(url: str) -> Iterator[Any]:
    """A headless browser on that page."""
    from selenium import webdriver

    programs = browser()
    assert programs is not None
    options = webdriver.ChromeOptions()
    options.binary_location, driver_path = programs
    # Small shared memory and no sandbox are what containers have.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,900")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    try:
        driver.get(url)
        yield driver
    finally:
        driver.quit()
