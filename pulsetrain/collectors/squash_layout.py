"""Where everything stands in the memory by which ranks that share a device hand on what one has computed.

One memory serves a node. The agent creates it, the ranks inherit it. Pages are there once they are written.
Words have eight bytes::

    cells       64 KiB for each local rank: its page, then one cell for each of its optimizers
    regions     for each local rank and optimizer: digests of all tensors, then two buffers

The agent writes a rank's group, the rank writes what it did and why it stopped. An optimizer's cell belongs
to the rank that computes, the root. Each sharer writes its own words in it.
"""

from __future__ import annotations

MAX_RANKS, MAX_OPTIMIZERS = 62, 8
CELL_BYTES, OPTIMIZERS_AT, OPTIMIZER_BYTES = 1 << 16, 1 << 12, 1 << 12
REGIONS_AT = MAX_RANKS * CELL_BYTES
REGION_BYTES = 1 << 36
MAX_TENSORS = 1 << 16
DIGESTS_BYTES = MAX_TENSORS * 8
BUFFERS_AT = 2 * DIGESTS_BYTES  # in a region, behind the digests from before and after an update
BUFFER_BYTES = (
    REGION_BYTES - BUFFERS_AT
) // 2  # where an optimizer's state grows, its buffers do not overlap
NUMBERS_BYTES = 1 << 16  # at the end of a buffer: what an optimizer keeps beside tensors, as JSON
ALIGNED, PAGE_BYTES = 64, 4096

# Words of a rank's page. Written by the agent: bits of the local ranks that share its device (0: none may
# squash), the number of that group, after how many steps all of them compute again, and whether an optimizer
# whose updates are not worth handing over is computed by all (1).
W_MASK, W_GROUP, W_EVERY, W_WEIGHS = range(4)
# Written by the rank: updates that it took over, those that all compared, those that it computed because it
# had to, ns that it waited for others in updates, and the length of the text that says why it stopped, 0: it
# did not.
W_TAKEN_OVER, W_COMPARED, W_ALONE, W_WAITED, W_STOPPED = range(8, 13)
TEXT_AT, TEXT_BYTES = 1024, 2048
W_LEFT = 13  # length of the text, behind the other one, that says which optimizer is not worth it, 0: none
LEFT_AT, LEFT_BYTES = TEXT_AT + TEXT_BYTES, 1024
W_IN_PLACE = 14  # updates, of those taken over, that the root computed in pages that the rank shows

# Words of an optimizer's cell, written by the root: its process, the group it serves, the update that it has
# announced, what it does in it, how many digests there are from before, the last update that it has compared
# and published, the buffer that holds it (0 or 1), bytes of the numbers, and a digest of the layout.
C_PID, C_GROUP, C_ANNOUNCED, C_MODE, C_TENSORS, C_COMPARED, C_PUBLISHED = range(7)
C_BUFFER, C_NUMBERS, C_LAYOUT = range(7, 10)
# Written by any of them: 1 once the replicas differ.
C_STOPPED = 11
C_TENSORS_AFTER = 12  # how many digests there are from after the update
C_WHOLE = 13  # 1 where the digests from before are of whole tensors, 0 of a part of large ones
C_LEFT = 14  # the group in which this optimizer's updates were not worth handing over
C_ASKED = 15  # the update that the root would compute in the pages of all, if each of them says yes
C_ADOPTED = 16  # 1 where the root's own tensors lie in the buffer, so that it may ask
# The answer `yes` of the last update that the root began to compute so, of the last one done, and of one that
# failed.
C_SHARED, C_SHARE_DONE, C_BROKEN = range(17, 20)
C_TO_SHARERS, C_TO_ROOT = 20, 21  # change when there is something new for who waits
# Written by each sharer at its local rank: the group in which it was found equal, the last update that it has
# taken over, whether its memory shows a buffer of the root, ns of its own for the update it took over, its
# answer to what the root has asked, and its process.
C_EQUAL_IN, C_TAKEN, C_SHOWS, C_SPENT, C_ANSWER, C_SHARER_PID = range(64, 64 * 7, 64)

COMPUTES, COMPARES, PUBLISHES, SHARES = range(4)


def answer(group: int, update: int, *, yes: bool) -> int:
    """What a sharer answers in an update of a group.

    >>> answer(1, 7, yes=True) == answer(1, 7, yes=False), answer(1, 7, yes=True) == answer(2, 7, yes=True)
    (False, False)
    """
    return group << 33 | update << 1 | yes


def size_bytes() -> int:
    """Size of the memory of a node, nearly all of it without pages."""
    return REGIONS_AT + MAX_RANKS * MAX_OPTIMIZERS * REGION_BYTES


def page_at(local_rank: int) -> int:
    """Where the page of a rank begins."""
    return local_rank * CELL_BYTES


def optimizer_at(local_rank: int, optimizer: int) -> int:
    """Where the cell of one of a rank's optimizers begins."""
    return local_rank * CELL_BYTES + OPTIMIZERS_AT + optimizer * OPTIMIZER_BYTES


def region_at(local_rank: int, optimizer: int) -> int:
    """Where the region of one of a rank's optimizers begins."""
    return REGIONS_AT + (local_rank * MAX_OPTIMIZERS + optimizer) * REGION_BYTES


def pages(size: int) -> int:
    """`size`, rounded up to whole pages.

    >>> pages(0), pages(1), pages(4096)
    (0, 4096, 4096)
    """
    return -(-size // PAGE_BYTES) * PAGE_BYTES
