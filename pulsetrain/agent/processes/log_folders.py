"""The folders in which ranks write what they print: one for each attempt."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path


class LogFolders:
    """Never gives a folder in which another run has written files of the same ranks.

    Runs may have the same `--log-dir`, one after another or at the same time, and nodes of a job share it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own: set[Path] = set()

    def folder(self, attempt: int, ranks: Sequence[int]) -> Path:
        """The folder of an attempt, made: attempt_N, else attempt_N.1, attempt_N.2 and so on.

        attempt_N where the disk refuses all: the output then goes nowhere.
        """
        usual = self._root / f"attempt_{attempt}"
        for number in itertools.count():
            folder = usual.with_name(f"{usual.name}.{number}") if number else usual
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if self._claim([folder / f"rank_{rank}{end}" for rank in ranks for end in (".out", ".err")]):
                    return folder
            except OSError:
                break
        return usual

    def _claim(self, files: Sequence[Path]) -> bool:
        """Create the files that are not this run's own. False where one is another's."""
        made: list[Path] = []
        for path in files:
            if path in self._own:
                continue
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            except FileExistsError:
                for each in made:
                    each.unlink(missing_ok=True)
                return False
            made.append(path)
        self._own.update(made)
        return True
