"""Rounds: processes that log are killed, and what they left is read with plain readers.

A round has one or two lives. Each is a process that resumes the run and dies; after each of them the files have to be
whole, in order, and hold all that was acknowledged. A life begins at step 0, so that the logger has to know what is
there already, or after the last acknowledged step, as a program with a checkpoint does. Some rounds end with a life
that is left alone: then everything has to be there, and nothing twice.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax

from tests.faults.reading import READERS, acknowledged_rows
from tests.faults.records import SEEDS, Columns, check_columns
from tests.forks import Fork, Server

BACKENDS = tuple(READERS)
MODES = ("log", "tap", "spool", "vmap", "threads")
KINDS = ("kill", "passing", "kill", "rival", "signals", "kill", "restored")
LIFE = "from tests.faults.child import main; main()"
WITHOUT_END = 10**9
PATIENCE = 120.0  # seconds; a process that says nothing for so long hangs


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a round does; all of it follows from the seed."""

    backend: str
    seed: int
    mode: str
    size: int  # of an array in each record
    late: bool  # keys that come later, and a dtype that grows: only records from Python can have these
    checkpoint: bool  # whether a life begins after the last acknowledged step
    lives: int
    completed: bool  # whether a last life is left alone
    kind: str = "kill"  # what happens to it

    @classmethod
    def draw(cls, backend: str, seed: int) -> Plan:
        draw = random.Random(f"{backend} {seed}")
        mode = MODES[seed % len(MODES)]  # so that few rounds have all of them
        late = mode in ("log", "threads") and draw.random() < 0.7
        size = draw.choice((3, 3, 1200)) if mode != "threads" else 3  # 1200 are more than a page of a file
        # After a crash, TensorBoard is told to forget what comes after the step with which a program goes on.
        checkpoint = backend == "tensorboard" or draw.random() < 0.5
        lives, completed = draw.choice((1, 1, 2)), draw.random() < 0.25
        kind = KINDS[seed // len(MODES) % len(KINDS)]
        if kind == "rival" and mode in ("vmap", "threads"):
            mode = "log"  # with several runs, each of the two could have some and wait for the others
        if kind == "restored":
            mode, late = "restored", False
        return cls(backend, seed, mode, size, late, checkpoint, lives, completed, kind)

    @property
    def seeds(self) -> range:
        return range(SEEDS if self.mode in ("vmap", "threads", "restored") else 1)


def fault_server() -> Server:
    """A server of processes that compile fast: how well their programs run does not matter."""
    flags = ["--xla_backend_optimization_level=0"]
    if jax.__version_info__ < (0, 11):  # newer versions do not have the other code generator
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return Server({"XLA_FLAGS": " ".join(flags)})


class Round:
    """One round in a folder of its own."""

    def __init__(self, server: Server, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.killed = 0  # lives that did not end by themselves
        self.processor_time = 0.0  # of its processes, in seconds
        self._server = server
        self._files = folder
        self._folder = folder / "runs"
        self._errors = folder / "errors"
        self._acknowledged = folder / "acknowledged"
        folder.mkdir(exist_ok=True)
        self._random = random.Random(f"moments {plan.backend} {plan.seed}")

    def play(self) -> None:
        if self.plan.kind == "kill":
            self._play_deaths()
        elif self.plan.kind == "restored":
            self._restart()
        else:
            self.come_through()

    def come_through(self) -> None:
        """A life with a faulty disk, a rival, or signals at its end: everything is there, and once."""
        status = self._live(rows=200)  # a multiple of what a compiled program logs at once
        assert status == 0, self._trouble(status)
        self.check(at_end=True)

    def _restart(self) -> None:
        """Two processes, the second with the states of the first."""
        for rows in (20, 60):
            status = self._live(rows=rows)
            assert status == 0, self._trouble(status)
            for seed in self.plan.seeds:
                due = rows + 10 * seed
                check_columns(self.read(seed), due, self.plan.late, complete=due)

    def _play_deaths(self) -> None:
        for _ in range(self.plan.lives):
            self._die(self.kill_at_a_random_moment)
        if self.plan.completed:
            self.complete()

    def die_of(self, **cause: int) -> bool:
        """A life that ends by itself, at a file operation or a byte; False if it came through to its end."""
        status = self._live(rows=250, **cause)
        self.check()
        assert status in (0, -signal.SIGKILL, -signal.SIGXFSZ), self._trouble(status)
        self.killed += status != 0
        return status != 0

    def _die(self, kill: Any) -> None:
        status = self._live(rows=WITHOUT_END, kill=kill)
        assert status == -signal.SIGKILL, self._trouble(status)
        self.killed += 1
        self.check()

    def complete(self) -> None:
        """Resumes what is there and lets it come to its end."""
        longest = max(max(map(len, self.read(seed).values()), default=0) for seed in self.plan.seeds)
        status = self._live(rows=longest + 100)
        assert status == 0, self._trouble(status)
        self.check(at_end=True)

    def check(self, at_end: bool = False) -> None:
        acknowledged = acknowledged_rows(self._acknowledged)
        for seed in self.plan.seeds:
            rows = acknowledged.get(seed, 0)
            check_columns(self.read(seed), rows, self.plan.late, complete=rows if at_end else None)

    def read(self, seed: int) -> Columns:
        return READERS[self.plan.backend](self._folder, f"{seed:016x}", self.plan.late)

    def kill_at_a_random_moment(self, child: Fork) -> None:
        """Mostly soon after the first acknowledgement, sometimes while the process still starts."""
        if self._random.random() < 0.1:
            time.sleep(self._random.uniform(0.0, 0.3))
        else:
            before = self._size_of_acknowledged()
            until = time.monotonic() + PATIENCE
            while self._size_of_acknowledged() == before:
                assert time.monotonic() < until, f"nothing is acknowledged:\n{self._errors.read_text()}"
                if child.poll() is not None:
                    return
                time.sleep(0.001)
            time.sleep(10 ** self._random.uniform(-4, -0.4))
        child.kill()

    def _live(self, rows: int, kill: Any = None, **cause: int) -> int:
        plan = self.plan
        spec = {"folder": str(self._folder), "acknowledged": str(self._acknowledged), "rows": rows, **cause}
        done = acknowledged_rows(self._acknowledged) if plan.checkpoint or plan.kind == "restored" else {}
        spec["starts"] = [done.get(seed, 0) for seed in plan.seeds]
        spec |= {"backend": plan.backend, "mode": plan.mode, "size": plan.size, "late": plan.late, "kind": plan.kind}
        spec["seed"] = self._random.randrange(10**6)
        with self._errors.open("w") as errors, self._server.start(LIFE, json.dumps(spec), stderr=errors) as child:
            if kill is not None:
                kill(child)
            try:
                status = child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{self.plan}: hangs\n{self._errors.read_text()}") from None
        self.processor_time += child.processor_time
        return status

    def remove_files(self) -> None:
        shutil.rmtree(self._files)

    def move_files(self, folder: Path) -> Path:
        return Path(shutil.move(self._files, folder))

    def _size_of_acknowledged(self) -> int:
        return self._acknowledged.stat().st_size if self._acknowledged.exists() else 0

    def _trouble(self, status: int) -> str:
        return f"{self.plan}: ended with status {status}\n{self._errors.read_text()}"
