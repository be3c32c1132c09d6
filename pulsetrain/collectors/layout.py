"""Where everything stands in a rank's ring: offsets in bytes, words and the fields of slots.

`ring` documents the whole; only `ring` and the hot paths that inline its writes use this.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

MAGIC = 0x474E4952_4553504C  # "PULSERING" cut to eight bytes, as memory shows it
LAYOUT_VERSION = 3
SLOT_BYTES = 64

MAX_NAMES, NAME_BYTES = 2048, 64
MAX_GROUPS, GROUP_WORDS = 256, 16
MAX_MEMBERS = 65536
MAX_PAIRS, PAIR_WORDS = 2048, 2
MAX_DEPTH = 16
MAX_SEQ = 0x7FFFFFFF  # numbers of operations start again after it

NAMES_AT = 4096
GROUPS_AT = NAMES_AT + MAX_NAMES * NAME_BYTES
MEMBERS_AT = GROUPS_AT + MAX_GROUPS * GROUP_WORDS * 8
PAIRS_AT = MEMBERS_AT + MAX_MEMBERS * 4
SLOTS_AT = PAIRS_AT + MAX_PAIRS * PAIR_WORDS * 8

# Words of page 0. The reader's word and the writer's words lie on different cache lines.
W_MAGIC, W_VERSION, W_CAPACITY, W_PID, W_UTC, W_GROUPS, W_ERRORS = range(7)
W_READ = 8
# Written by the agent: the number of the profile that it asks for (0: none), its first step, its length (0:
# that profile is called off).
W_PROFILE, W_PROFILE_FROM, W_PROFILE_STEPS = range(9, 12)
# Written by the agent: the number of the barrier that it asks for (0: none), how many arrivals the rank goes
# past, until when it may stand, on the ring's clock, and 0 for the end of a step, else 1 + the step that the
# script's own checkpoint must have.
W_HOLD, W_HOLD_PAST, W_HOLD_UNTIL, W_HOLD_SAVED = range(12, 16)
W_DROPPED = 16
# Written by the rank: where it stands (number of the barrier << 32 | arrivals, 0: nowhere), how many of its
# operations are in flight then, how often it ran on by itself, and how many pairs are counted (-1: too many).
W_STANDS, W_IN_FLIGHT, W_RAN_ON, W_PAIRS = range(17, 21)
W_RENAMED = 21  # how often a name has taken the place of one that nobody needs any more
W_STEP, W_LAST_STEP, W_STEP_START, W_LAST = range(24, 28)
W_RESUMED = 28  # the step that this attempt goes on from, -1: it began with its first
W_PROFILED = 29  # number of the last profile that the rank has written, negative where it failed
W_TOPOLOGY = 32  # 1 once the five coordinates that follow are set
# Written by the agent: the device that the rank takes turns on, plus one (0: one of its own), and the number
# of that order.
W_DEVICE, W_DEVICE_ORDER = 40, 41
# Written by the rank: the last order that it follows, its turns, what it waited for them in ns, turns that it
# gave away while it stood still, and 1 where its process groups work on a device, so that it takes no turns.
W_DEVICE_FOLLOWS, W_DEVICE_TURNS, W_DEVICE_WAITED, W_DEVICE_LENT, W_DEVICE_REFUSED = range(48, 53)
W_STACK = 64  # MAX_DEPTH pairs: head (0: not open), start
STACK_AT = W_STACK * 8
STACK_END = STACK_AT + 16 * MAX_DEPTH
W_TEXT = 256  # version << 16 | length of the description that follows; 0 while it is written
TEXT_AT, TEXT_BYTES = (W_TEXT + 1) * 8, 1016

SAVED_AT = 3072  # two cells of `checkpoint_cell`: what the script itself wrote last, and what it read
LOADED_AT = SAVED_AT + 512

AXES = ("tp", "pp", "dp", "cp", "ep")
G_NAME, G_COUNT, G_FIRST, G_STRIDE, G_POOL, G_ENQUEUED, G_COMPLETED = range(7)
G_SEQ, G_BYTES, G_START, G_PEER, G_OP = range(7, 12)  # the operation in flight; G_OP is 0 for none
G_TIMEOUT = 12  # ns after which torch ends an operation of the group, 0 if unknown
G_DEVICE = 13  # 1 if its operations end on a device, and G_COMPLETED is only what was seen of that

P_HEAD, P_COUNT = range(2)  # of a pair: see `pair_head`

SPAN, STEP, PHASE = 1, 2, 3  # kinds of slots; a PHASE is a span whose seq, peer and bytes are not written
HAS_LOSS, HAS_GRAD_NORM = 1, 2


def _slot(*fields: tuple[str, str, int]) -> np.dtype[np.void]:
    """Layout of a slot from (name, format, offset in bytes) of its fields."""
    names, formats, offsets = (list(column) for column in zip(*fields, strict=True))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": SLOT_BYTES})


SPAN_DTYPE = _slot(
    ("kind", "u1", 0),
    ("category", "u1", 1),
    ("name", "<u2", 2),
    ("parent", "<u2", 4),
    ("group", "<u2", 6),
    ("step", "<u4", 8),
    ("microbatch", "<i2", 12),
    ("lane", "<u2", 14),
    ("start", "<i8", 16),
    ("end", "<i8", 24),
    ("seq", "<i4", 32),
    ("peer", "<i4", 36),
    ("bytes", "<i8", 40),
    ("blocked", "<i8", 48),
    ("commit", "<u8", 56),
)
STEP_DTYPE = _slot(
    ("kind", "u1", 0),
    ("flags", "u1", 1),
    ("step", "<u4", 4),
    ("start", "<i8", 8),
    ("duration", "<i8", 16),
    ("tokens", "<i8", 24),
    ("flops", "<f8", 32),
    ("loss", "<f8", 40),
    ("grad_norm", "<f8", 48),
    ("commit", "<u8", 56),
)

PACK_OPEN = struct.Struct("<2q").pack_into
PACK_PHASE = struct.Struct("<4q16x2q").pack_into
PACK_SPAN = struct.Struct("<4q2i3q").pack_into
PACK_STEP = struct.Struct("<BBHIqqqdddq").pack_into
PACK_WORD = struct.Struct("<q").pack_into
PACK_OP = struct.Struct("<5q").pack_into
PACK_GROUP = struct.Struct("<7q").pack_into  # from `G_ENQUEUED` to `G_OP`

Structured = npt.NDArray[np.void]


def span_head(name: int, category: int, parent: int = 0, group: int = 0, kind: int = SPAN) -> int:
    """First word of a span slot; `name`, `parent` and `group` are indices into the names."""
    return kind | category << 8 | name << 16 | parent << 32 | group << 48


def span_context(step: int, microbatch: int, lane: int) -> int:
    """Second word of a span slot; `microbatch` is -1 outside any, `lane` an index into the names."""
    return (step & 0xFFFFFFFF) | (min(microbatch, 0x7FFF) & 0xFFFF) << 32 | lane << 48


def pair_head(group: int, peer: int, *, sends: bool) -> int:
    """What a rank counts in a pair's cell: what it sends to a peer in a group, or receives from it.

    `group` is the number of the group's cell, `peer` a global rank.
    """
    return 1 << 62 | (1 << 61 if sends else 0) | group << 32 | peer


def read_pair_head(head: int) -> tuple[int, int, bool]:
    """Return what `pair_head` packed: group, peer, whether it sends."""
    return head >> 32 & 0xFFFF, head & 0xFFFFFFFF, bool(head >> 61 & 1)


WAITING = 1 << 62  # in a stack entry's head: a wait for an operation that its group's cell describes
