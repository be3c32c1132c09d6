"""The states that an operator reads. Each has a word, a glyph and a colour (Okabe-Ito)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

from pulsetrain.core.json import JsonObject


@dataclass(frozen=True, kw_only=True)
class State:
    """How one state looks. `urgency` sorts: the greater, the sooner a person should look."""

    label: str
    glyph: str
    colour: str
    symbol: str  # of a Plotly 3-D marker
    urgency: int


_NO_DATA = State(label="no data", glyph="○", colour="#8a8f98", symbol="circle-open", urgency=3)

JOB_STATES: Mapping[str, State] = MappingProxyType(
    {
        "healthy": State(label="healthy", glyph="●", colour="#009E73", symbol="circle", urgency=0),
        "recorded": State(label="recorded", glyph="✓", colour="#4C7A9B", symbol="circle", urgency=1),
        "finished": State(label="finished", glyph="✓", colour="#4C7A9B", symbol="circle", urgency=1),
        "ended": State(label="ended", glyph="◻", colour="#4C7A9B", symbol="circle", urgency=1),
        "preempted": State(label="pre-empted", glyph="◫", colour="#4C7A9B", symbol="circle", urgency=2),
        "starting": State(label="starting", glyph="◔", colour="#56B4E9", symbol="circle", urgency=2),
        "forming": State(label="forming", glyph="◔", colour="#56B4E9", symbol="circle", urgency=2),
        "no_data": _NO_DATA,
        "warning": State(label="warning", glyph="▲", colour="#E69F00", symbol="diamond", urgency=5),
        "recovering": State(label="recovering", glyph="↻", colour="#0072B2", symbol="diamond", urgency=4),
        "slow": State(label="slow", glyph="▲", colour="#E69F00", symbol="diamond", urgency=5),
        "hung": State(label="hung", glyph="■", colour="#D55E00", symbol="square", urgency=7),
        "failed": State(label="failed", glyph="✕", colour="#A3195B", symbol="x", urgency=8),
    }
)

RANK_STATES: Mapping[str, State] = MappingProxyType(
    {
        "culprit": State(label="culprit", glyph="◆", colour="#D55E00", symbol="diamond", urgency=9),
        "gone": State(label="gone", glyph="✕", colour="#A3195B", symbol="cross", urgency=8),
        "stopped": State(label="stopped", glyph="■", colour="#CC79A7", symbol="square", urgency=7),
        "slow": State(label="slow", glyph="▲", colour="#E69F00", symbol="diamond", urgency=6),
        "part": State(label="faulty part", glyph="✦", colour="#8B6BD0", symbol="diamond", urgency=5),
        "victim": State(label="waits", glyph="◷", colour="#56B4E9", symbol="square", urgency=4),
        "no_data": _NO_DATA,
        "running": State(label="running", glyph="●", colour="#009E73", symbol="circle", urgency=0),
    }
)

NODE_STATES: Mapping[str, State] = MappingProxyType(
    {
        "active": State(label="active", glyph="●", colour="#009E73", symbol="circle", urgency=0),
        "standby": State(label="standby", glyph="◌", colour="#56B4E9", symbol="circle", urgency=1),
        "culprit": State(label="culprit", glyph="◆", colour="#D55E00", symbol="diamond", urgency=9),
        "slow": State(label="slow", glyph="▲", colour="#E69F00", symbol="diamond", urgency=6),
        "part": State(label="faulty part", glyph="✦", colour="#8B6BD0", symbol="diamond", urgency=5),
        "suspect": State(label="suspect", glyph="▲", colour="#E69F00", symbol="diamond", urgency=6),
        "lost": State(label="lost", glyph="✕", colour="#A3195B", symbol="x", urgency=8),
        "evicted": State(label="evicted", glyph="⊘", colour="#D55E00", symbol="x", urgency=7),
        "left": State(label="left", glyph="✓", colour="#4C7A9B", symbol="circle", urgency=1),
    }
)

DETECTOR_STATES: Mapping[str, State] = MappingProxyType(
    {
        "healthy": State(label="sees its data", glyph="●", colour="#009E73", symbol="circle", urgency=0),
        "inconclusive": State(label="cannot tell", glyph="◔", colour="#56B4E9", symbol="circle", urgency=2),
        "finding": State(label="has a finding", glyph="▲", colour="#E69F00", symbol="diamond", urgency=5),
        "blind": State(label="blind", glyph="⊘", colour="#8a8f98", symbol="circle-open", urgency=6),
        "failed": State(label="broken", glyph="✕", colour="#A3195B", symbol="x", urgency=8),
    }
)

INCIDENT_STATES: Mapping[str, State] = MappingProxyType(
    {
        "open": State(label="open", glyph="■", colour="#D55E00", symbol="square", urgency=7),
        "over": State(label="over", glyph="✓", colour="#4C7A9B", symbol="circle", urgency=1),
    }
)

SEVERITIES: Mapping[str, State] = MappingProxyType(
    {
        "critical": State(label="critical", glyph="■", colour="#D55E00", symbol="square", urgency=8),
        "warning": State(label="warning", glyph="▲", colour="#E69F00", symbol="diamond", urgency=5),
        "info": State(label="info", glyph="●", colour="#56B4E9", symbol="circle", urgency=1),
    }
)


LOG_SEVERITIES: Mapping[str, State] = MappingProxyType(
    {
        **SEVERITIES,
        "error": State(label="error", glyph="✕", colour="#D55E00", symbol="x", urgency=6),
        "debug": State(label="debug", glyph="·", colour="#8a8f98", symbol="circle", urgency=0),
    }
)


def look(name: str, states: Mapping[str, State]) -> State:
    """Return how a state looks.

    One that the table does not know keeps its own word, in grey, and is not called healthy.
    """
    known = states.get(name.replace(" ", "_"))
    return known or State(label=name or "no data", glyph="○", colour="#8a8f98", symbol="circle", urgency=3)


def job_state(job: JsonObject) -> str:
    """Return a job's state, a key of `JOB_STATES`. A missing or unknown verdict is "no_data"."""
    state = str((job.get("verdict") or {}).get("state", "")).replace(" ", "_")
    return state if state in JOB_STATES else "no_data"


def pill(name: str, states: Mapping[str, State]) -> str:
    """A state as HTML: glyph and word, so that nothing depends on colour alone."""
    state = look(name, states)
    return (
        f'<span class="pill" style="--c:{state.colour}"><span aria-hidden="true">{state.glyph}</span>'
        f" {escape(state.label)}</span>"
    )
