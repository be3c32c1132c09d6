"""A drawing of a timeline as bytes for the canvas: a header in JSON, and columns of integers.

Layout: 16 characters of a digest of all that follows, the header's length (4 bytes, little endian), the
header (UTF-8), then the columns that the header names, one after the other. A number is a varint: seven bits
in each byte, the lowest first, the eighth bit set where more follow. Numbers that may be negative are folded
to 0, -1, 1, -2, 2 ... as 0, 1, 2, 3, 4. The same drawing is always the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import CATEGORY_COLOURS, Theme
from pulsetrain.dashboard.models.states import RANK_STATES
from pulsetrain.dashboard.models.timeline.drawing import Drawing, draw
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.spans import Ints, Spans
from pulsetrain.dashboard.models.timeline.words import summary

MOST_BYTES = 250_000
"""With the script of the canvas it stays below 300 KB."""


def fitting(
    spans: Spans,
    clocks: NodeClocks,
    blame: Attribution,
    theme: Theme,
    *,
    most_bytes: int = MOST_BYTES,
) -> tuple[Drawing, bytes]:
    """The drawing of at least one span and its bytes, without the shortest spans where it were too large."""
    while True:
        drawing = draw(spans, clocks, blame)
        drawing = replace(drawing, summary=summary(drawing))
        data = payload(drawing, theme)
        if len(data) <= most_bytes or len(spans) == 1:
            return drawing, data
        spans = spans.longest(max(1, int(len(spans) * 0.97 * most_bytes / len(data))))


def payload(drawing: Drawing, theme: Theme) -> bytes:
    """The bytes of a drawing of at least one span, in the colours of a theme."""
    columns = _columns(drawing)
    header = {
        **_header(drawing, theme),
        "columns": [[name, len(values)] for name, values in columns.items()],
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    body = struct.pack("<I", len(text)) + text + b"".join(varints(values) for values in columns.values())
    return xxhash.xxh3_64_hexdigest(body).encode() + body


def _columns(drawing: Drawing) -> Mapping[str, Ints]:
    """Every column. Starts count from the span before on the same lane, and `seq` from the span before."""
    spans, origin = drawing.spans, drawing.origin_ns
    start = spans["start_ns"] - origin
    sizes, size = np.unique(spans["bytes"], return_inverse=True)
    bubbles = drawing.bubbles
    lanes = {lane.rank: i for i, lane in reversed(list(enumerate(drawing.lanes.lanes)))}
    return {
        "start": folded(_differences(start, [lane.first for lane in drawing.lanes.lanes])),
        "duration": spans["duration_ns"],
        "blocked": spans["blocked_ns"] + 1,
        "kind": drawing.kind,
        "section": drawing.section,
        "microbatch": spans["microbatch"] + 1,
        "group": spans.names["group"].codes,
        "seq": folded(_differences(spans["seq"])),
        "size": size.reshape(-1).astype(np.int64),
        "peer": spans["peer"] + 1,
        "node": spans.names["node"].codes,
        "look": drawing.lanes.level * 2 + spans.open,
        "sizes": sizes,
        "send": folded(_differences(drawing.arrows.send)),
        "recv": folded(drawing.arrows.recv - drawing.arrows.send),
        "bubble_lane": np.array([lanes[bubble.rank] for bubble in bubbles], np.int64),
        "bubble_start": np.array([bubble.start_ns - origin for bubble in bubbles], np.int64),
        "bubble_length": np.array([bubble.length_ns for bubble in bubbles], np.int64),
    }


def _differences(values: Ints, starts_anew: Sequence[int] = ()) -> Ints:
    """Each value less the one before it. Those at `starts_anew` stay."""
    found = np.diff(values, prepend=0)
    anew = np.array(starts_anew, np.int64)
    found[anew] = values[anew]
    return found


def folded(values: Ints) -> Ints:
    """Numbers that may be negative as numbers that are not.

    >>> folded(np.array([0, -1, 1, -2, 2])).tolist()
    [0, 1, 2, 3, 4]
    """
    return (values << 1) ^ (values >> 63)


def varints(values: Ints) -> bytes:
    """Numbers from 0 on, seven bits in a byte.

    >>> varints(np.array([1, 300])).hex()
    '01ac02'
    """
    numbers: NDArray[np.uint64] = values.astype(np.uint64)
    sizes = np.ones(len(numbers), np.int64)
    for bits in range(7, 64, 7):
        sizes += numbers >= np.uint64(1 << bits)
    at = np.cumsum(sizes) - sizes
    found = np.zeros(int(sizes.sum()), np.uint8)
    for place in range(int(sizes.max(initial=0))):
        has = sizes > place
        more = np.where(sizes[has] > place + 1, 128, 0)
        found[at[has] + place] = ((numbers[has] >> np.uint64(7 * place)) & np.uint64(127)).astype(
            np.uint8
        ) | more
    return found.tobytes()


def _header(drawing: Drawing, theme: Theme) -> JsonObject:
    origin = drawing.origin_ns
    extent = drawing.extent
    return {
        "origin": str(origin),
        "full": [when - origin for when in extent.full],
        "view": [when - origin for when in extent.view],
        "hung": extent.hung,
        "lanes": [[lane.rank, lane.label, lane.node, lane.first, lane.last] for lane in drawing.lanes.lanes],
        "states": {str(rank): state for rank, state in sorted(drawing.states.items())},
        "looks": {
            name: [look.label, look.glyph, look.colour]
            for name, look in RANK_STATES.items()
            if name in drawing.states.values()
        },
        "kinds": [[phase, category] for phase, category in drawing.kinds],
        "sections": [
            [step.attempt, step.step, step.start_ns - origin, step.end_ns - origin] for step in drawing.steps
        ],
        "groups": list(drawing.spans.names["group"].names),
        "nodes": [[node, drawing.clock_errors_ns.get(node)] for node in drawing.spans.names["node"].names],
        "summary": drawing.summary,
        "colours": dict(CATEGORY_COLOURS),
        "theme": {
            "text": theme.text,
            "muted": theme.muted,
            "grid": theme.grid,
            "paper": theme.paper,
            "head": theme.head,
            "missing": theme.missing,
        },
    }
