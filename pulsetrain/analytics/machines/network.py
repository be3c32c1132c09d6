"""What the counters of RDMA ports and network interfaces say: lost traffic, flaps, congestion, cables.

Ports are compared with their own past and with the other ports of the fleet, never with a fixed load. A
missing sample stays missing, and a counter at its end is blind (`stream.counters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsetrain.analytics.machines.network_ports import RECEIVE, TRANSMIT, Port, S, ports
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict
from pulsetrain.records.counters import Counter, every_counter

Floats = NDArray[np.float64]
NAME = "network"


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What counts as trouble."""

    drop_ratio: float = 0.5
    """traffic of a step below this share of what it used to be is a drop"""
    drop_windows: int = 3
    """windows in a row that must have dropped"""
    stop_s: float = 10.0
    """a port that carried traffic and then nothing for so long has stopped"""
    down_s: float = 30.0
    """a port that is not active for so long is down"""
    flaps: int = 3
    """times that a link went down in the range that make it flap (gpud 4a8de33)"""
    errors_per_minute: float = 1.0
    """link errors from which a cable is suspect"""
    outlier_ratio: float = 5.0
    """how many times the fleet's median congestion or retransmission, per byte, stands out"""
    outlier_sigmas: float = 6.0
    """and how many robust sigmas"""
    least_events: float = 100.0
    """increases below this are too few to compare"""


def find(
    table: pa.Table,
    *,
    now_ns: int,
    job: str = "",
    steps_ns: Sequence[int] = (),
    config: NetworkConfig | None = None,
) -> list[Verdict]:
    """Findings of kind `traffic_drop`, `link_flap`, `port_down`, `congestion` and `link_errors`.

    `steps_ns` are the times at which the job began its steps: with them traffic is compared step by step, so
    that a slower job is no drop. `Inconclusive` and blind where there is no sample of a port.
    """
    config = config or NetworkConfig()
    known = ports(table)
    if not known:
        return [Inconclusive(analyzer=NAME, reason="no sample of an RDMA port", blind=True)]
    seen = _Scene(job=job, now_ns=now_ns, config=config, ports=known, steps_ns=np.array(steps_ns, np.int64))
    found: list[Verdict] = []
    for port in known:
        found += [f for f in (_flap(seen, port), _down(seen, port), _errors(seen, port)) if f is not None]
    found += _outliers(seen) + _traffic(seen)
    blind = sorted({p.name for p in known if _saturated(p)})
    numbers = {"ports": len(known), "saturated": blind}
    return found or [Healthy(analyzer=NAME, numbers=numbers)]


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """What every rule needs."""

    job: str
    now_ns: int
    config: NetworkConfig
    ports: list[Port]
    steps_ns: NDArray[np.int64]

    def finding(
        self,
        kind: str,
        port: Port,
        severity: Severity,
        confidence: float,
        summary: str,
        evidence: Mapping[str, Any],
    ) -> Finding:
        return Finding(
            ts_ns=self.now_ns,
            job=self.job,
            attempt=-1,
            kind=kind,
            subject_type="link",
            subject=port.name,
            severity=severity,
            confidence=confidence,
            summary=f"{port.name} {summary}",
            evidence={
                "query": f"metrics {port.family}_*",
                "node": port.node,
                "device": port.device,
                **evidence,
            },
        )


def _saturated(port: Port) -> list[str]:
    """Counters that cannot count any further: they are blind until somebody clears them."""
    table = every_counter()
    return sorted(m for m, (_, v) in port.samples.items() if m in table and table[m].saturated(float(v[-1])))


# -- one port ---------------------------------------------------------------------------------------------


def _flap(seen: _Scene, port: Port) -> Finding | None:
    counted = port.downs()
    _, states = port.samples.get(port.state, (np.empty(0, np.int64), np.empty(0)))
    observed = int(np.sum((states[:-1] == port.up) & (states[1:] != port.up))) if states.size > 1 else 0
    downs = max(observed, 0 if np.isnan(counted) else int(counted))
    if downs == 0:
        return None
    flaps = downs >= seen.config.flaps
    return seen.finding(
        "link_flap",
        port,
        "warning" if flaps else "info",
        min(0.95, 0.5 + 0.15 * downs),
        f"went down {downs} times" if downs > 1 else "went down once",
        {
            "downs": downs,
            "seen_down": observed,
            "counter_blind": "rdma_link_downed_total" in _saturated(port),
        },
    )


def _down(seen: _Scene, port: Port) -> Finding | None:
    if port.state not in port.samples:
        return None
    times, states = port.samples[port.state]
    if states[-1] == port.up:
        return None
    active = np.flatnonzero(states == port.up)
    since = int(times[active[-1] + 1]) if active.size else int(times[0])
    age_s = (int(times[-1]) - since) / S
    if age_s < seen.config.down_s or not active.size:
        return None  # a port that never was active in the range is not plugged in
    summary = f"is down for {age_s:.0f} s"
    return seen.finding("port_down", port, "critical", 0.95, summary, {"since_ns": since, "down_s": age_s})


def _errors(seen: _Scene, port: Port) -> Finding | None:
    table = every_counter()
    grown: dict[str, float] = {}
    for metric in port.samples:
        if metric in table and table[metric].reveals == "errors":
            count, minutes = port.total(metric), port.seconds(metric) / 60
            if (
                minutes > 0
                and np.isfinite(count)
                and count / max(minutes, 1.0) >= seen.config.errors_per_minute
            ):
                grown[metric] = round(count / max(minutes, 1.0), 2)
    if not grown:
        return None
    worst = max(grown, key=lambda m: grown[m])
    sure = min(0.9, 0.5 + 0.1 * float(np.log10(1 + grown[worst])))
    summary = f"counts errors: {worst} {grown[worst]:.3g} a minute"
    return seen.finding("link_errors", port, "warning", round(sure, 2), summary, {"per_minute": grown})


# -- the fleet --------------------------------------------------------------------------------------------


def _outliers(seen: _Scene) -> list[Verdict]:
    """Ports with far more congestion or retransmission per byte than most."""
    found: list[Verdict] = []
    moved = np.array([p.moved_bytes for p in seen.ports])
    for metric, counter in every_counter().items():
        if counter.reveals not in ("congestion", "retransmission"):
            continue
        events = np.array([p.total(metric) for p in seen.ports])
        usable = np.isfinite(events) & (moved > 0)
        if usable.sum() < 4:
            continue
        share = np.where(usable, events / np.where(moved > 0, moved, 1), np.nan)
        found += _standing_out(seen, counter, share, events)
    return _worst_each(found)


def _standing_out(seen: _Scene, counter: Counter, share: Floats, events: Floats) -> list[Verdict]:
    centre = float(np.nanmedian(share))
    spread = 1.4826 * float(np.nanmedian(np.abs(share - centre)))
    limit = max(centre * seen.config.outlier_ratio, centre + seen.config.outlier_sigmas * spread)
    found: list[Verdict] = []
    for i in np.flatnonzero((share > limit) & (events >= seen.config.least_events)):
        times = share[i] / centre if centre > 0 else float("inf")
        found.append(
            seen.finding(
                "congestion",
                seen.ports[i],
                "warning",
                0.75,
                f"has {'far more' if centre == 0 else f'{times:.0f} times the'} {counter.metric} per byte "
                f"{'than others' if centre == 0 else 'of others'}",
                {
                    "metric": counter.metric,
                    "reveals": counter.reveals,
                    "events": float(events[i]),
                    "per_gigabyte": float(share[i] * 1e9),
                    "fleet_per_gigabyte": centre * 1e9,
                },
            )
        )
    return found


def _worst_each(found: Sequence[Verdict]) -> list[Verdict]:
    """One finding a port: that with the most events."""
    best: dict[str, Finding] = {}
    for finding in found:
        if isinstance(finding, Finding):
            before = best.get(finding.subject)
            if before is None or finding.evidence["events"] > before.evidence["events"]:
                best[finding.subject] = finding
    return [best[name] for name in sorted(best)]


# -- traffic ----------------------------------------------------------------------------------------------


def _traffic(seen: _Scene) -> list[Verdict]:
    """RDMA ports whose traffic dropped or ended; where it did for all, the job says so once. Interfaces carry
    more than the job, so their traffic is not judged."""
    found: list[Finding] = []
    carrying = 0
    for port in seen.ports:
        edges, moved = _cumulated(port)
        if edges.size < 4 or moved[-1] <= 0:
            continue
        carrying += 1
        finding = _stopped(seen, port, edges, moved) or _dropped(seen, port, edges, moved)
        if finding is not None:
            found.append(finding)
    if carrying >= 2 and len(found) == carrying:
        return [_everywhere(seen, found)]
    return list(found)


def _cumulated(port: Port) -> tuple[NDArray[np.int64], Floats]:
    """Bytes sent and received since the first sample, at the times of the samples."""
    parts = [port.increases(m) for m in (TRANSMIT, RECEIVE) if m in port.samples]
    if not parts:
        return np.empty(0, np.int64), np.empty(0)
    times = parts[0][0]
    total = np.zeros(times.size)
    for at, steps in parts:
        total += np.interp(times, at, np.cumsum(np.nan_to_num(steps))) if at.size else 0
    return times, total


def _stopped(seen: _Scene, port: Port, edges: NDArray[np.int64], moved: Floats) -> Finding | None:
    last = int(np.flatnonzero(np.diff(moved, prepend=0.0) > 0)[-1])
    silent_s = (int(edges[-1]) - int(edges[last])) / S
    usual = np.diff(edges[: last + 1]).max() / S if last else 0.0
    if silent_s < max(seen.config.stop_s, 3 * usual) or last < 3:
        return None
    return seen.finding(
        "traffic_drop",
        port,
        "critical",
        0.85,
        f"carries nothing for {silent_s:.0f} s",
        {"stopped": True, "since_ns": int(edges[last]), "silent_s": silent_s},
    )


def _dropped(seen: _Scene, port: Port, edges: NDArray[np.int64], moved: Floats) -> Finding | None:
    windows = _signature(seen, edges, moved)
    need = seen.config.drop_windows
    if windows.size < 3 * need:
        return None
    history, latest = windows[:-need], windows[-need:]
    usual = float(np.median(history))
    if usual <= 0 or not (latest < seen.config.drop_ratio * usual).all():
        return None
    noise = 1.4826 * float(np.median(np.abs(history - usual))) / usual
    ratio = float(np.median(latest)) / usual
    if 1 - ratio < 4 * noise:
        return None
    unit = "step" if seen.steps_ns.size else "window"
    return seen.finding(
        "traffic_drop",
        port,
        "warning",
        round(min(0.9, 0.6 + 0.3 * (1 - ratio)), 2),
        f"carries {ratio:.0%} of what it used to in each {unit}",
        {"stopped": False, "ratio": round(ratio, 3), "usual_bytes": usual, "windows": int(windows.size)},
    )


def _signature(seen: _Scene, edges: NDArray[np.int64], moved: Floats) -> Floats:
    """Bytes of each window: as many whole steps as three samples need, else as many samples."""
    period = float(np.median(np.diff(edges)))
    begins = seen.steps_ns[(seen.steps_ns >= edges[0]) & (seen.steps_ns <= edges[-1])]
    if begins.size > 3:
        step = float(np.median(np.diff(begins)))
        begins = begins[:: max(1, int(np.ceil(3 * period / step)))] if step > 0 else begins
        return np.diff(np.interp(begins, edges, moved))
    return np.diff(moved[::3])


def _everywhere(seen: _Scene, found: Sequence[Finding]) -> Finding:
    stopped = all(f.evidence["stopped"] for f in found)
    what = "carry nothing any more" if stopped else "carry less than they used to"
    return Finding(
        ts_ns=seen.now_ns,
        job=seen.job,
        attempt=-1,
        kind="traffic_drop",
        subject_type="job",
        subject=seen.job,
        severity="critical" if stopped else "warning",
        confidence=max(f.confidence for f in found),
        summary=f"all {len(found)} ports that carried traffic {what}: not one port's fault",
        evidence={"query": "metrics rdma_*", "stopped": stopped, "ports": [f.subject for f in found]},
    )
