"""Whether what ranks are to run is there."""

from __future__ import annotations

import shutil
import sys

from pulsetrain.agent.processes.rank import Program
from pulsetrain.core.errors import UsageError


def check_program(program: Program, flag: str = "") -> None:
    """Raises `UsageError` where the script, module or program is not there.

    The message begins with `flag`.
    """
    name = program.argv[0]
    if program.mode == "script" and not (program.cwd / name).is_file():
        raise UsageError(f"{flag}script {name!r}: no such file")
    if program.mode == "exec" and shutil.which(name) is None:
        raise UsageError(f"{flag}program {name!r}: not found; with --no-python give a path or a name in PATH")
    if program.mode == "module" and not _importable(name, program):
        raise UsageError(f"{flag}module {name!r}: not found from {program.cwd}")


def _importable(module: str, program: Program) -> bool:
    """Whether the top-level package is there; the ranks find the module itself."""
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(module.partition(".")[0], [str(program.cwd), *sys.path]) is not None
