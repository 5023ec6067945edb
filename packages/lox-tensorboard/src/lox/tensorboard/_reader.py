"""The reader `tensorboard`: event files, from lox, tensorboardX, CLU or TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lox.loggers import Reader, Recording, StoredRun


class TensorBoardReader(Reader):
    """A run is a folder of event files, as in TensorBoard."""

    patterns = ("*tfevents*",)

    def find(self, root: Path, files: Sequence[Path]) -> Iterable[StoredRun]:
        folders: dict[Path, list[Path]] = {}
        for file in files:
            if file.is_file() and not file.is_symlink():
                folders.setdefault(file if file == root else file.parent, []).append(file)
        for place, of_run in folders.items():
            name = place.relative_to(root).as_posix()
            yield StoredRun("" if name == "." else name, tuple(sorted(of_run)))

    def read(self, run: StoredRun, wanted: object) -> Recording:
        from lox.tensorboard._reading import read_run  # imports tensorboardX, which is slow

        return read_run(run)
