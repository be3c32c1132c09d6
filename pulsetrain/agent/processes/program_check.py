"""Whether what ranks are to run is there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pulsetrain.agent.processes.rank import Program
from pulsetrain.core.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.importlib import MetaPathFinderProtocol


def check_program(program: Program, flag: str = "") -> None:
    """Raises `UsageError` where the script, module or program is not there.

    The message begins with `flag`.
    """
    name = program.argv[0]
    if program.mode == "script":
        _check_script(program.cwd / name, f"{flag}script {name!r}")
    if program.mode == "exec" and shutil.which(name) is None:
        raise UsageError(f"{flag}program {name!r}: not found; with --no-python give a path or a name in PATH")
    if program.mode == "module" and not _importable(name, program):
        raise UsageError(f"{flag}module {name!r}: not found from {program.cwd}")


def _check_script(path: Path, named: str) -> None:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{named}: a folder without a __main__.py")
    elif not path.is_file():
        raise UsageError(f"{named}: no such file")


def _importable(module: str, program: Program) -> bool:
    """Whether the top-level package is there; the ranks find the module itself. Nothing is imported.

    An editable install may have a finder of its own, which knows packages that are on no path.
    """
    from importlib.machinery import PathFinder

    name = module.partition(".")[0]
    if PathFinder.find_spec(name, [str(program.cwd), *sys.path]) is not None:
        return True
    return any(_finds(finder, name) for finder in sys.meta_path)


def _finds(finder: MetaPathFinderProtocol, name: str) -> bool:
    """Whether it knows a module that is in no package. Where its own code fails, the ranks will say."""
    try:
        return finder.find_spec(name, None) is not None
    except Exception:  # noqa: BLE001 - the code of whoever installed it
        return True
