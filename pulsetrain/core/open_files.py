"""How many files and connections this process may have open at the same time."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger()


def allow_many_open_files() -> int:
    """Use all of what the system allows. Returns how many that are.

    Many systems begin with 1,024, for programs that cannot count further. A hub has a connection for each
    node, so a larger fleet would be refused.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        log.warning("open_files_limited", allowed=soft, error=str(error))
        return soft
    return hard
