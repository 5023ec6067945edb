"""The reader `wandb`: the files that runs leave on disk, written by lox or by wandb alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from lox.loggers import Reader, Recording, StoredRun


class WandbReader(Reader):
    """Reads files `run-ID.wandb`, each in its own folder. A run has one for each time that it was opened."""

    patterns = ("run-*.wandb",)

    def find(self, root: Path, files: Sequence[Path]) -> Iterable[StoredRun]:
        from lox.wandb._reading import display_name  # imports wandb, which takes a second

        runs: dict[tuple[Path, str], list[Path]] = {}
        for file in files:
            runs.setdefault((file.parent.parent, file.stem.removeprefix("run-")), []).append(file)
        found = []
        for (folder, run_id), of_run in runs.items():
            ordered = tuple(sorted(of_run, key=lambda file: file.parent.name.removeprefix("offline-")))
            if ordered[0] == root or ordered[0].parent == root:
                return [StoredRun("", ordered)]
            found.append((_way(root, folder), display_name(ordered) or run_id, run_id, ordered))
        names = Counter((way, name) for way, name, _, _ in found)
        return [
            StoredRun("/".join([*way, name if names[way, name] == 1 else f"{name} ({run_id})"]), ordered)
            for way, name, run_id, ordered in found
        ]

    def read(self, run: StoredRun, wanted: object) -> Recording:
        from lox.wandb._reading import read_run

        return read_run(run)


def _way(root: Path, folder: Path) -> tuple[str, ...]:
    """The folders from `root` to a run, without the one that wandb itself creates."""
    way = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    return way[:-1] if way and way[-1] == "wandb" else way
