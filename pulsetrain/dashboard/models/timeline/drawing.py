"""All that is drawn of a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.charts import CATEGORY_COLOURS
from pulsetrain.dashboard.models.timeline.arrows import Arrows, arrows_of
from pulsetrain.dashboard.models.timeline.bubbles import Bubble, bubbles_of
from pulsetrain.dashboard.models.timeline.extent import Extent, Step, extent_of, steps_of
from pulsetrain.dashboard.models.timeline.lanes import Lanes, lanes_of
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.spans import Ints, Spans


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Spans in the order of their lanes, and what is drawn around them. Times are on the reference's clock.

    `kind` and `section` say which of `kinds` (phase, category) and `steps` each span is. `states` are the
    ranks that a finding is about. `clock_errors_ns` has the nodes whose clock was compared.
    """

    spans: Spans
    lanes: Lanes
    steps: tuple[Step, ...]
    extent: Extent
    arrows: Arrows
    bubbles: tuple[Bubble, ...]
    kinds: tuple[tuple[str, str], ...]
    kind: Ints
    section: Ints
    states: Mapping[int, str]
    clock_errors_ns: Mapping[str, int]
    summary: str = ""

    @property
    def origin_ns(self) -> int:
        """UTC ns from which the times of the canvas count."""
        return self.extent.full[0]

    @property
    def left_out(self) -> int:
        """How many spans of these ranks and steps are not drawn."""
        return max(0, self.spans.in_all - len(self.spans))


def draw(spans: Spans, clocks: NodeClocks, blame: Attribution) -> Drawing:
    """What is drawn of at least one span. Ranks that a finding accuses come first."""
    aligned = spans.on_one_clock(clocks).ordered(_accused(spans, blame))
    steps = steps_of(aligned)
    kinds, kind = _kinds(aligned)
    lanes = lanes_of(aligned)
    names = aligned.names["node"].names
    errors = {name: error for name in names if (error := clocks.error_ns(name)) is not None}
    return Drawing(
        spans=aligned,
        lanes=lanes,
        steps=steps,
        extent=extent_of(aligned, steps),
        arrows=arrows_of(aligned),
        bubbles=bubbles_of(aligned),
        kinds=kinds,
        kind=kind,
        section=_sections(aligned, steps),
        states=_states(lanes, blame),
        clock_errors_ns=dict.fromkeys(names, 0) if len(names) == 1 else errors,
    )


def _kinds(spans: Spans) -> tuple[tuple[tuple[str, str], ...], Ints]:
    phase, category = spans.names["phase"], spans.names["category"]
    pairs, which = np.unique(np.stack([phase.codes, category.codes]), axis=1, return_inverse=True)
    known = tuple(
        (phase.names[p], category.names[c] if category.names[c] in CATEGORY_COLOURS else "other")
        for p, c in pairs.T.tolist()
    )
    return known, which.reshape(-1).astype(np.int64)


def _sections(spans: Spans, steps: Sequence[Step]) -> Ints:
    numbers = {(step.attempt, step.step): i for i, step in enumerate(steps)}
    keys = zip(spans["attempt"].tolist(), spans["step"].tolist(), strict=True)
    return np.array([numbers[key] for key in keys], np.int64)


def _accused(spans: Spans, blame: Attribution) -> list[int]:
    """The ranks of these spans at fault, or on a machine at fault."""
    node = spans.names["node"]
    places = np.unique(np.stack([spans["rank"], node.codes]), axis=1).T.tolist()
    return sorted({rank for rank, code in places if blame.state(rank, node.names[code])})


def _states(lanes: Lanes, blame: Attribution) -> dict[int, str]:
    """The state of each shown rank that a finding is about, a key of `RANK_STATES`."""
    found = {}
    for lane in lanes.lanes:
        state = blame.state(lane.rank, lane.node)
        state = state or ("victim" if lane.rank in blame.victims else "")
        if state:
            found[lane.rank] = state
    return found
