"""How many files and connections this process may have open at the same time."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger()


def allow_many_open_files() -> int:
    """Use all of what the system allows. Returns how many that are.

    Many systems begin with 1,024, for programs that cannot count further. A hub has a connection for each
    node, and an agent has several files for each rank. Programs that are started later inherit the limit.
    See `give_open_files` for those that should not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("open_files_limited", allowed=soft, error=str(error))
        return soft
    return hard


def give_open_files(pid: int, limits: tuple[int, int]) -> None:
    """Give the process `pid` these limits, soft and hard, where this process has others.

    A user's program may not work with more than 1,024 files, so it keeps the limit that the user gave it.
    """
    if limits == resource.getrlimit(resource.RLIMIT_NOFILE):
        return
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    except (ValueError, OSError) as error:
        log.warning("open_files_not_given", pid=pid, allowed=limits[0], error=str(error))
