"""What records call the groups of a world that is not the job's, of which a rank knows only itself.

Several trainings in one launch have a world each, and torch names their groups alike. So ranks of different
worlds would seem to be members of one group. The name of such a group has the rank in it.
"""

from __future__ import annotations

import re

_NAME = re.compile(r" seen by rank \d+$")


def own_name(group: str, rank: int) -> str:
    """Return the name of a group whose other members are not known.

    >>> own_name("world", 5)
    'world seen by rank 5'
    """
    return f"{group} seen by rank {rank}"


def is_own_name(group: str) -> bool:
    """Whether a name is one of `own_name`."""
    return _NAME.search(group) is not None
