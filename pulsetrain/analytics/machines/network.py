"""What the counters of RDMA ports and network interfaces tell: lost traffic, flaps, congestion, bad cables.

Ports are compared with their own past and with the other ports of the fleet, never with a fixed load. A
missing sample stays missing. A counter at its largest value cannot count further (`records.counters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.machines.metric_series import NS_PER_S
from pulsetrain.analytics.machines.network_config import NetworkConfig
from pulsetrain.analytics.machines.network_ports import FAMILIES, RECEIVE, TRANSMIT, Port, totals
from pulsetrain.analytics.machines.traffic_screen import worth_a_look
from pulsetrain.analytics.machines.traffic_signature import QUIET_SHARE, crossings, typical_change
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, Severity, Verdict
from pulsetrain.records.counters import Counter, every_counter

Floats = NDArray[np.float64]
NAME = "network"


def find(
    known: Sequence[Port],
    *,
    now_ns: int,
    job: str = "",
    steps_ns: Sequence[int] = (),
    config: NetworkConfig | None = None,
    was_up_ns: Mapping[str, int] | None = None,
) -> list[Verdict]:
    """Findings of kind `traffic_drop`, `traffic_stop`, `traffic_fluctuation`, `link_flap`, `port_down`,
    `congestion` and `link_errors` on the `known` ports.

    `steps_ns` are the times at which the job began its steps. With them, traffic is compared step by step, so
    that a slower job is no drop, and a port is named only if a step ended while it carried nothing.
    `was_up_ns` says when a port was up last, by name, if that was before all samples. `Inconclusive` and
    blind where there is no sample of a port.

    >>> import pyarrow as pa
    >>> from pulsetrain.analytics.machines.network_ports import ports
    >>> rows = [(f"n{i}", second, 4.0 if i or second < 5 else 1.0) for i in range(2) for second in range(60)]
    >>> node, second, value = zip(*rows)
    >>> ts = pa.array([s * 10**9 for s in second], pa.timestamp("ns", "UTC"))
    >>> columns = {"node": node, "device": ["mlx5_0/1"] * 120, "name": ["rdma_port_state"] * 120}
    >>> [flap, down] = find(ports(pa.table({**columns, "ts": ts, "value": value})), now_ns=0)
    >>> down.summary
    'n0/mlx5_0/1 is down for 54 s'
    """
    config = config or NetworkConfig()
    if not known:
        return [Inconclusive(analyzer=NAME, reason="no sample of an RDMA port", blind=True)]
    counted = sorted({metric for port in known for metric in port.samples} & every_counter().keys())
    fleet = _Fleet(
        job=job,
        now_ns=now_ns,
        config=config,
        ports=list(known),
        totals={metric: totals(known, metric) for metric in counted},
        steps_ns=np.array(steps_ns, np.int64),
        was_up_ns=was_up_ns or {},
    )
    flapped, erred = _counted(fleet, "flap"), _counted(fleet, "errors")
    verdicts: list[Verdict] = []
    for i, port in enumerate(known):
        was_down = port.state in port.samples and bool((port.samples[port.state][1] != port.up).any())
        found = (
            _flap(fleet, port) if flapped[i] or was_down else None,
            _down(fleet, port) if was_down else None,
            _errors(fleet, port) if erred[i] else None,
        )
        verdicts += [finding for finding in found if finding is not None]
    verdicts += _outliers(fleet) + _traffic(fleet)
    if verdicts:
        return verdicts
    saturated = sorted({p.name for p in known if _saturated(p)})
    return [Healthy(analyzer=NAME, numbers={"ports": len(known), "saturated": saturated})]


@dataclass(frozen=True, kw_only=True)
class _Fleet:
    """All ports and the job, as every rule needs them. `totals` has what each port counted, by metric."""

    job: str
    now_ns: int
    config: NetworkConfig
    ports: list[Port]
    totals: Mapping[str, Floats]
    steps_ns: NDArray[np.int64]
    was_up_ns: Mapping[str, int]

    def finding(
        self,
        kind: str,
        port: Port,
        severity: Severity,
        confidence: float,
        summary: str,
        evidence: Mapping[str, object],
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


def down_throughout(known: Sequence[Port]) -> list[str]:
    """Names of the ports whose state is known and that no sample shows up."""
    told = [port for port in known if port.state in port.samples]
    return [port.name for port in told if not (port.samples[port.state][1] == port.up).any()]


def _saturated(port: Port) -> list[str]:
    """Counters at their largest value: they see nothing until somebody clears them."""
    table = every_counter()
    return sorted(m for m, (_, v) in port.samples.items() if m in table and table[m].saturated(float(v[-1])))


def _counted(fleet: _Fleet, reveals: str) -> NDArray[np.bool_]:
    """Which ports counted anything that reveals this."""
    grew = np.zeros(len(fleet.ports), np.bool_)
    for metric, total in fleet.totals.items():
        if every_counter()[metric].reveals == reveals:
            grew |= total > 0
    return grew


# -- one port ---------------------------------------------------------------------------------------------


def _flap(fleet: _Fleet, port: Port) -> Finding | None:
    counted = port.downs()
    _, states = port.samples.get(port.state, (np.empty(0, np.int64), np.empty(0)))
    observed = int(np.sum((states[:-1] == port.up) & (states[1:] != port.up))) if states.size > 1 else 0
    downs = max(observed, 0 if np.isnan(counted) else int(counted))
    if downs == 0:
        return None
    flaps = downs >= fleet.config.flaps
    return fleet.finding(
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


def _down(fleet: _Fleet, port: Port) -> Finding | None:
    if port.state not in port.samples:
        return None
    times, states = port.samples[port.state]
    if states[-1] == port.up:
        return None
    active = np.flatnonzero(states == port.up)
    before = fleet.was_up_ns.get(port.name)
    if not active.size and before is None:
        return None  # a port that never was active is not plugged in
    since = int(times[active[-1] + 1]) if active.size else before or 0
    age_s = (int(times[-1]) - since) / NS_PER_S
    if age_s < fleet.config.down_s:
        return None
    summary = f"is down for {age_s:.0f} s"
    return fleet.finding("port_down", port, "critical", 0.95, summary, {"since_ns": since, "down_s": age_s})


def _errors(fleet: _Fleet, port: Port) -> Finding | None:
    table = every_counter()
    grown: dict[str, float] = {}
    for metric in port.samples:
        if metric in table and table[metric].reveals == "errors":
            count, minutes = port.total(metric), port.seconds(metric) / 60
            if (
                minutes > 0
                and np.isfinite(count)
                and count / max(minutes, 1.0) >= fleet.config.errors_per_minute
            ):
                grown[metric] = round(count / max(minutes, 1.0), 2)
    if not grown:
        return None
    worst = max(grown, key=lambda m: grown[m])
    sure = min(0.9, 0.5 + 0.1 * float(np.log10(1 + grown[worst])))
    summary = f"counts errors: {worst} {grown[worst]:.3g} a minute"
    return fleet.finding("link_errors", port, "warning", round(sure, 2), summary, {"per_minute": grown})


# -- the fleet --------------------------------------------------------------------------------------------


def _outliers(fleet: _Fleet) -> list[Finding]:
    """Ports with far more congestion or retransmission per byte than most."""
    outliers: list[Finding] = []
    moved = _moved_bytes(fleet)
    for metric, events in fleet.totals.items():
        counter = every_counter()[metric]
        if counter.reveals not in ("congestion", "retransmission"):
            continue
        usable = np.isfinite(events) & (moved > 0)
        if usable.sum() < 4:
            continue
        share = np.where(usable, events / np.where(moved > 0, moved, 1), np.nan)
        outliers += _standing_out(fleet, counter, share, events)
    return _worst_each(outliers)


def _moved_bytes(fleet: _Fleet) -> Floats:
    """Everything that each port sent and received in the range."""
    nothing = np.full(len(fleet.ports), np.nan)
    moved = {
        family: sum(
            np.nan_to_num(fleet.totals.get(f"{family}_{way}_bytes", nothing))
            for way in ("transmit", "receive")
        )
        for family in FAMILIES
    }
    rdma = np.array([port.family == "rdma" for port in fleet.ports])
    return np.where(rdma, moved["rdma"], moved["nic"])


def _standing_out(fleet: _Fleet, counter: Counter, share: Floats, events: Floats) -> list[Finding]:
    centre = float(np.nanmedian(share))
    spread = 1.4826 * float(np.nanmedian(np.abs(share - centre)))
    limit = max(centre * fleet.config.outlier_ratio, centre + fleet.config.outlier_sigmas * spread)
    outliers: list[Finding] = []
    for i in np.flatnonzero((share > limit) & (events >= fleet.config.least_events)):
        times = share[i] / centre if centre > 0 else float("inf")
        outliers.append(
            fleet.finding(
                "congestion",
                fleet.ports[i],
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
    return outliers


def _worst_each(outliers: Sequence[Finding]) -> list[Finding]:
    """One finding for each port: that with the most events."""
    best: dict[str, Finding] = {}
    for finding in outliers:
        before = best.get(finding.subject)
        if before is None or finding.evidence["events"] > before.evidence["events"]:
            best[finding.subject] = finding
    return [best[name] for name in sorted(best)]


# -- traffic ----------------------------------------------------------------------------------------------


def _traffic(fleet: _Fleet) -> list[Verdict]:
    """RDMA ports whose traffic dropped or ended. One finding on the job where that is no port's fault.

    Network interfaces carry more than the job's traffic, so theirs is not judged.
    """
    stops: list[Finding] = []
    drops: list[Finding] = []
    fluctuating: list[Finding] = []
    looked_at, carrying = worth_a_look(fleet.ports, np.sort(fleet.steps_ns), fleet.config)
    for port in (fleet.ports[i] for i in looked_at):
        edges, moved = _cumulated_bytes(port)
        if edges.size < 4 or moved[-1] <= 0:
            continue
        carrying += 1
        if (stopped := _stopped(fleet, port, edges, moved)) is not None:
            stops.append(stopped)
        elif (dropped := _dropped(fleet, port, edges, moved)) is not None:
            drops.append(dropped)
        elif (restless := _fluctuates(fleet, port, edges, moved)) is not None:
            fluctuating.append(restless)
    if drops and carrying >= 2 and len(stops) + len(drops) == carrying:
        return [_dropped_everywhere(fleet, [*stops, *drops])]
    few = max(1, carrying // 4)  # more of them alike: the job itself changes its pace
    calm = fluctuating if len(fluctuating) <= few else []
    return [*_named_stops(fleet, stops, few, carrying), *drops, *calm]


def _named_stops(fleet: _Fleet, stops: Sequence[Finding], few: int, carrying: int) -> list[Finding]:
    """Ports that stopped while steps went on, and one finding of severity info for the others.

    A healthy job carries nothing while it evaluates, saves or compiles: then no step ends. Nor is it one
    port's fault where more than `few` stopped.
    """
    newest_ns = max((int(times[-1]) for p in fleet.ports for times, _ in p.samples.values()), default=0)
    named = [f for f in stops if _step_ended(fleet, f.evidence["since_ns"], newest_ns)]
    if len(stops) > few:
        named = []
    paused = [f for f in stops if f not in named]
    return [*named, *([_paused(fleet, paused, carrying)] if paused else ())]


def _step_ended(fleet: _Fleet, since_ns: int, newest_ns: int) -> bool:
    """Whether a whole step lies between two times: one began, and the one after it."""
    return int(np.sum((fleet.steps_ns > since_ns) & (fleet.steps_ns <= newest_ns))) >= 2


def _cumulated_bytes(port: Port) -> tuple[NDArray[np.int64], Floats]:
    """Bytes sent and received since the first sample, at the times of the samples."""
    parts = [port.increases(m) for m in (TRANSMIT, RECEIVE) if m in port.samples]
    if not parts:
        return np.empty(0, np.int64), np.empty(0)
    times = max((at for at, _ in parts), key=len)
    total = np.zeros(times.size)
    for at, steps in parts:
        total += np.interp(times, at, np.cumsum(np.nan_to_num(steps))) if at.size else 0
    return times, total


def _stopped(fleet: _Fleet, port: Port, edges: NDArray[np.int64], moved: Floats) -> Finding | None:
    """As agents judge it: nothing moves for three times the longest pause, on a port that usually carries.

    A port that only saves and reads files carries nothing in most windows, so it is never missed.
    """
    active = np.flatnonzero(np.diff(moved, prepend=0.0) > 0)
    last = int(active[-1])
    silent_s = (int(edges[-1]) - int(edges[last])) / NS_PER_S
    longest_s = int(np.diff(edges[active]).max(initial=0)) / NS_PER_S
    if silent_s < max(fleet.config.stop_s, fleet.config.pause_factor * longest_s) or last < 3:
        return None
    windows = _window_bytes(fleet, edges[: last + 1], moved[: last + 1])
    per_s = float(moved[last]) / max(1.0, (int(edges[last]) - int(edges[0])) / NS_PER_S)
    steady = windows.size > 0 and np.median(windows) > QUIET_SHARE * windows.mean()
    if not steady or per_s < fleet.config.least_bytes_per_s:
        return None
    return fleet.finding(
        "traffic_stop",
        port,
        "critical",
        0.85,
        f"carries nothing for {silent_s:.0f} s",
        {"stopped": True, "since_ns": int(edges[last]), "silent_s": silent_s},
    )


def _dropped(fleet: _Fleet, port: Port, edges: NDArray[np.int64], moved: Floats) -> Finding | None:
    windows = _window_bytes(fleet, edges, moved)
    need = fleet.config.drop_windows
    if windows.size < 3 * need:
        return None
    history, latest = windows[:-need], windows[-need:]
    usual = float(np.median(history))
    if usual <= 0 or not (latest < fleet.config.drop_ratio * usual).all():
        return None
    noise = 1.4826 * float(np.median(np.abs(history - usual))) / usual
    ratio = float(np.median(latest)) / usual
    if 1 - ratio < 4 * noise:
        return None
    unit = "step" if fleet.steps_ns.size else "window"
    return fleet.finding(
        "traffic_drop",
        port,
        "warning",
        round(min(0.9, 0.6 + 0.3 * (1 - ratio)), 2),
        f"carries {ratio:.0%} of what it used to in each {unit}",
        {"stopped": False, "ratio": round(ratio, 3), "usual_bytes": usual, "windows": int(windows.size)},
    )


def _fluctuates(fleet: _Fleet, port: Port, edges: NDArray[np.int64], moved: Floats) -> Finding | None:
    """Traffic that varies from window to window as it did not before, and is neither a drop nor a stop."""
    windows = _window_bytes(fleet, edges, moved)
    need = fleet.config.spread_windows
    if windows.size < 4 * need:
        return None
    history, latest = windows[:-need], windows[-need:]
    usual = float(np.median(history))
    if usual <= 0:
        return None
    before, now = typical_change(history), float(latest.std()) / usual
    if now < max(fleet.config.spread_share, fleet.config.spread_factor * before) or crossings(latest) < 2:
        return None
    return fleet.finding(
        "traffic_fluctuation",
        port,
        "warning",
        0.7,
        f"carries between {latest.min() / usual:.0%} and {latest.max() / usual:.0%} of what it used to",
        {"spread": round(now, 3), "usual_spread": round(before, 3), "usual_bytes": usual},
    )


def _window_bytes(fleet: _Fleet, edges: NDArray[np.int64], moved: Floats) -> Floats:
    """Bytes moved in each window: of as many whole steps as three samples take, else of three samples."""
    period = float(np.median(np.diff(edges)))
    begins = fleet.steps_ns[(fleet.steps_ns >= edges[0]) & (fleet.steps_ns <= edges[-1])]
    if begins.size > 3:
        step = float(np.median(np.diff(begins)))
        begins = begins[:: max(1, int(np.ceil(3 * period / step)))] if step > 0 else begins
        return np.diff(np.interp(begins, edges, moved))
    return np.diff(moved[::3])


def _paused(fleet: _Fleet, stops: Sequence[Finding], carrying: int) -> Finding:
    """Information: it may be a pause. Whether the job hangs is told by its ranks."""
    which = f"all {carrying}" if len(stops) == carrying else f"{len(stops)} of {carrying}"
    silent_s = max(f.evidence["silent_s"] for f in stops)
    return _on_job(
        fleet,
        "traffic_stop",
        "info",
        stops,
        f"{which} ports that carried traffic carry nothing for {silent_s:.0f} s: the job may pause",
    )


def _dropped_everywhere(fleet: _Fleet, drops: Sequence[Finding]) -> Finding:
    what = f"all {len(drops)} ports that carried traffic carry less than they used to"
    return _on_job(fleet, "traffic_drop", "warning", drops, f"{what}: not one port's fault")


def _on_job(fleet: _Fleet, kind: str, severity: Severity, alike: Sequence[Finding], summary: str) -> Finding:
    return Finding(
        ts_ns=fleet.now_ns,
        job=fleet.job,
        attempt=-1,
        kind=kind,
        subject_type="job",
        subject=fleet.job,
        severity=severity,
        confidence=max(f.confidence for f in alike),
        summary=summary,
        evidence={
            "query": "metrics rdma_*",
            "stopped": all(f.evidence["stopped"] for f in alike),
            "ports": [f.subject for f in alike],
        },
    )
