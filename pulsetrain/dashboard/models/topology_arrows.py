"""The chosen rank in the chart of the mesh: its ring, its peers, and lines that show which way data goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import plotly.graph_objects as go

from pulsetrain.dashboard.models.charts import Theme
from pulsetrain.dashboard.models.topology import RankPoint
from pulsetrain.dashboard.models.topology_rank import Peer

_LINKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tp": ("#2E8B9A", "tensor parallel: both ways"),
        "dp": ("#8C6D46", "data parallel: both ways"),
        "cp": ("#B07AA1", "context parallel: both ways"),
        "ep": ("#7A5BB5", "expert parallel: both ways"),
        "pp": ("#3B7DB8", "pipeline: activations"),
        "transfer": ("#E0457B", "send or recv that was seen"),
    }
)
"""colour and name of a line. Those that are drawn last lie on top."""
_TIP, _BARB, _BREADTH = 0.72, 0.1, 0.04  # where an arrow's head is, and its size, as shares
Point = tuple[float, float, float]


def add_chosen(
    chart: go.Figure, me: RankPoint, peers: Sequence[Peer], shown: Collection[int], theme: Theme
) -> None:
    """Ring the chosen rank and its peers, and join them. `shown` are the ranks of the chart.

    To whom activations go, or a send, is drawn also outside of them. Peers without a place are left out.
    """
    placed = [p for p in peers if p.place is not None and (p.flow != "both" or p.rank in shown)]
    extent = _extent(chart, me, placed)
    for link, (colour, name) in _LINKS.items():
        own = [peer for peer in placed if peer.link == link]
        if own:
            chart.add_scatter3d(
                **_path([point for peer in own for point in arrow(_at(me), peer, extent)]),
                mode="lines",
                name=name,
                line={"color": colour, "width": 6},
                hoverinfo="skip",
            )
    _ring(chart, list({peer.rank: peer for peer in placed}.values()), theme)
    chart.add_scatter3d(
        x=[me.tp], y=[me.pp], z=[me.dp],
        mode="markers",
        name=f"rank {me.rank}, chosen",
        ids=[str(me.rank)],
        marker={"size": 24, "color": theme.text, "symbol": "circle-open", "line": {"width": 4}},
        customdata=[f"<b>rank {me.rank}</b> on {me.node}, chosen<br>{me.doing}"],
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _ring(chart: go.Figure, found: Sequence[Peer], theme: Theme) -> None:
    if not found:
        return
    places = [peer.place or (0, 0, 0) for peer in found]
    chart.add_scatter3d(
        x=[place[0] for place in places],
        y=[place[1] for place in places],
        z=[place[2] for place in places],
        mode="markers",
        showlegend=False,
        ids=[str(peer.rank) for peer in found],
        marker={"size": 18, "color": theme.text, "symbol": "circle-open", "line": {"width": 2}},
        customdata=[f"<b>rank {peer.rank}</b> on {peer.node or 'a node not known here'}" for peer in found],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _at(me: RankPoint) -> Point:
    return (float(me.tp), float(me.pp), float(me.dp))


def _extent(chart: go.Figure, me: RankPoint, peers: Sequence[Peer]) -> Point:
    """How long each axis is, 1 at least."""
    own = [_at(me), *(peer.place or _at(me) for peer in peers)]
    values = [
        [*(v for trace in chart.data for v in trace[axis] if v is not None), *(p[i] for p in own)]
        for i, axis in enumerate("xyz")
    ]
    first, second, third = (max(1.0, float(max(v) - min(v))) for v in values)
    return (first, second, third)


def arrow(me: Point, peer: Peer, extent: Point) -> list[Point | None]:
    """A line from `me` to a peer, with a head where the data goes one way. None lifts the pen.

    >>> arrow((0, 0, 0), Peer(rank=1, link="tp", flow="both", place=(1, 0, 0)), (1, 1, 1))
    [(0, 0, 0), (1.0, 0.0, 0.0), None]
    """
    tp, pp, dp = peer.place or me
    there: Point = (float(tp), float(pp), float(dp))
    line: list[Point | None] = [me, there, None]
    if peer.flow == "both" or there == me:
        return line
    begin, end = (me, there) if peer.flow == "out" else (there, me)
    away = [e - b for b, e in zip(begin, end, strict=True)]
    sides = sorted(range(3), key=lambda i: abs(away[i]) / extent[i])[:2]  # so it is seen from everywhere
    tip = _along(begin, away, _TIP)
    for side in sides:
        for sign in (-1, 1):
            barb = list(_along(begin, away, _TIP - _BARB))
            barb[side] += sign * _BREADTH * extent[side]
            line += [(barb[0], barb[1], barb[2]), tip, None]
    return line


def _along(begin: Point, away: Sequence[float], share: float) -> Point:
    x, y, z = (b + share * a for b, a in zip(begin, away, strict=True))
    return (x, y, z)


def _path(points: Sequence[Point | None]) -> dict[str, list[float | None]]:
    return {axis: [None if p is None else p[i] for p in points] for i, axis in enumerate("xyz")}
