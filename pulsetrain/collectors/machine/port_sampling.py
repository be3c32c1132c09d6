"""Samples ports' counters every millisecond for a short while, as a compact histogram of each.

The counters' files stay open, so that a sample is two reads of a few characters. Nothing runs while nobody
asks. Rates below are bits per second, shares are of the link's limit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from pulsetrain.collectors.machine import nic, rdma
from pulsetrain.records.counters import counters, rate_bits_per_s

Integers = NDArray[np.int64]
Direction = Literal["transmit", "receive"]
DIRECTIONS: tuple[Direction, Direction] = ("transmit", "receive")

PERIOD_NS = 1_000_000
MOST_SAMPLES = 60_000
HELD_UP_SHARE = 0.25
"""A sample that took longer than this share of a period was held up, so its time is wrong. It is left out."""
IDLE_SHARE = 0.02
"""A millisecond that moved less than this share of the busiest one is idle."""
AT_LIMIT_SHARE = 0.9
"""A busy millisecond above this share of the link's limit reached it: headers take some per cent."""
BUCKETS = 10


@dataclass(frozen=True, kw_only=True)
class Port:
    """Where the counters of one port are. `scale` is bytes for each count."""

    device: str
    transmit: Path
    receive: Path
    scale: int = 1
    limit_bits_per_s: float | None = None
    others: Mapping[str, Path] = field(default_factory=dict)
    """Counters of pauses, discards and marks by metric. They are read at the beginning and at the end."""


class DirectionRow(TypedDict):
    """What one direction of a port did. Times in milliseconds, None where there is nothing to say.

    `histogram` counts the busy milliseconds by share of the limit, or of the busiest millisecond where the
    limit is not known, in tenths. The last entry also holds those above. `idle` counts the idle ones.
    """

    bytes: int
    mean_bits_per_s: float
    peak_bits_per_s: float
    peak_share: float | None
    idle: int
    histogram: list[int]
    bursts: int
    longest_burst_ms: float
    median_burst_ms: float | None
    longest_gap_ms: float
    median_gap_ms: float | None
    busy_share: float
    at_limit_share: float | None


class PortRow(TypedDict):
    """One port over one stretch of sampling. `grown` are counters of congestion that grew, by metric."""

    device: str
    samples: int
    seconds: float
    period_ms: float
    limit_bits_per_s: float | None
    transmit: DirectionRow
    receive: DirectionRow
    grown: dict[str, int]
    cpu_share: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """Monotonic times in ns and counters in bytes, one entry for each sample."""

    times_ns: Integers
    transmit: Integers
    receive: Integers
    cpu_ns: int = 0
    grown: Mapping[str, int] = field(default_factory=dict)


def ports(net: Path = nic.CLASS, infiniband: Path = rdma.CLASS, *, devices: Sequence[str] = ()) -> list[Port]:
    """The ports of a machine: RDMA ports, and interfaces with hardware. With `devices` only those.

    An RDMA port is named by card and port number, as mlx5_0/1.
    """
    found = [*_rdma_ports(infiniband), *_interfaces(net, devices)]
    return [port for port in found if not devices or port.device in devices]


def _rdma_ports(folder: Path) -> Iterator[Port]:
    table = counters()
    others = [c for c in table.values() if c.reveals == "congestion"]
    transmit, receive = table["rdma_transmit_bytes"], table["rdma_receive_bytes"]
    for path in sorted(folder.glob("*/ports/*")):
        yield Port(
            device=f"{path.parent.parent.name}/{path.name}",
            transmit=path / transmit.folder / transmit.file,
            receive=path / receive.folder / receive.file,
            scale=transmit.scale,
            limit_bits_per_s=rate_bits_per_s(_text(path / "rate")),
            others={c.metric: path / c.folder / c.file for c in others},
        )


def _interfaces(folder: Path, devices: Sequence[str]) -> Iterator[Port]:
    for path in sorted(folder.glob("*")):
        if not (path / "device").exists() and path.name not in devices:
            continue
        speed = _text(path / "speed")
        known = counters("nic").values()
        yield Port(
            device=path.name,
            transmit=path / "statistics" / "tx_bytes",
            receive=path / "statistics" / "rx_bytes",
            limit_bits_per_s=float(speed) * 1e6 if speed.isdecimal() and int(speed) > 0 else None,
            others={
                c.metric: path / c.folder / c.file
                for c in known
                if c.reveals == "congestion" and c.folder != "ethtool"
            },
        )


def sample(
    ports: Sequence[Port],
    *,
    seconds: float = 1.0,
    period_ns: int = PERIOD_NS,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Samples]:
    """Sample these ports together for `seconds`. Time that a slow read lost is not made up for.

    Most of the cost is to wake up each millisecond, so that many ports cost little more than one. Run it on a
    thread of its own, because it sleeps. Raises `OSError` where a counter cannot be read.
    """
    before = [_others(port) for port in ports]
    rows: list[tuple[int, list[bytes], int]] = []
    with contextlib.ExitStack() as files:
        fds = [_opened(files, path) for port in ports for path in (port.transmit, port.receive)]
        cpu_ns, pread = time.thread_time_ns(), os.pread
        due_ns = monotonic_ns()
        end_ns = due_ns + int(seconds * 1e9)
        while due_ns < end_ns and len(rows) < MOST_SAMPLES:
            begun_ns = monotonic_ns()
            texts = [pread(fd, 24, 0) for fd in fds]
            done_ns = monotonic_ns()
            rows.append((begun_ns, texts, done_ns))
            due_ns += period_ns
            if due_ns < begun_ns:
                due_ns = begun_ns
            sleep((due_ns - done_ns) * 1e-9 if due_ns > done_ns else 0)
        cpu_ns = time.thread_time_ns() - cpu_ns
    rows = [row for row in rows if row[2] - row[0] <= period_ns * HELD_UP_SHARE]
    times_ns = np.array([row[0] for row in rows], np.int64)
    counted = np.array([[int(text) for text in row[1]] for row in rows], np.int64).reshape(-1, len(fds))
    return [
        Samples(
            times_ns=times_ns,
            transmit=counted[:, 2 * i] * port.scale,
            receive=counted[:, 2 * i + 1] * port.scale,
            cpu_ns=cpu_ns // len(ports),
            grown=_grown(before[i], _others(port)),
        )
        for i, port in enumerate(ports)
    ]


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {metric: after[metric] - v for metric, v in before.items() if after.get(metric, v) > v}


def _opened(files: contextlib.ExitStack, path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    files.callback(os.close, fd)
    return fd


def _others(port: Port) -> dict[str, int]:
    """Counters beside the traffic: files, and what `ethtool -S` has of a network interface."""
    values = {metric: _text(path) for metric, path in port.others.items()}
    found = {metric: int(text) for metric, text in values.items() if text.isdecimal()}
    if "/" not in port.device:
        with contextlib.suppress(OSError):
            found |= nic.congestion(nic.driver_statistics(port.device))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def summary(port: Port, samples: Samples) -> PortRow:
    """What a stretch of samples says of a port: bursts, idle gaps, share of the limit. Pure.

    >>> port = Port(device="eth0", transmit=Path(), receive=Path(), limit_bits_per_s=8e9)
    >>> sent = np.array([0, 0, 10**6, 2 * 10**6, 2 * 10**6, 2 * 10**6, 3 * 10**6])
    >>> row = summary(port, Samples(times_ns=np.arange(7) * 10**6, transmit=sent, receive=sent * 0))
    >>> row["transmit"]["bursts"], row["transmit"]["longest_burst_ms"], row["transmit"]["longest_gap_ms"]
    (2, 2.0, 2.0)
    """
    seconds = float(samples.times_ns[-1] - samples.times_ns[0]) / 1e9 if samples.times_ns.size else 0.0
    widths_ns = np.diff(samples.times_ns)
    return PortRow(
        device=port.device,
        samples=int(samples.times_ns.size),
        seconds=round(seconds, 4),
        period_ms=round(float(np.median(widths_ns)) / 1e6, 4) if widths_ns.size else 0.0,
        limit_bits_per_s=port.limit_bits_per_s,
        transmit=_direction(widths_ns, np.diff(samples.transmit), port.limit_bits_per_s),
        receive=_direction(widths_ns, np.diff(samples.receive), port.limit_bits_per_s),
        grown=dict(samples.grown),
        cpu_share=round(samples.cpu_ns / 1e9 / seconds, 5) if seconds else 0.0,
    )


def _direction(widths_ns: Integers, moved: Integers, limit: float | None) -> DirectionRow:
    moved = np.maximum(moved, 0)  # a card that was reset in between begins again
    total = int(moved.sum())
    widths_ms = widths_ns / 1e6
    rates = moved * 8e9 / np.maximum(widths_ns, 1)
    peak = float(rates.max(initial=0.0))
    busy = rates > IDLE_SHARE * peak
    bursts_ms, gaps_ms = _runs(busy, widths_ms), _runs(~busy, widths_ms)
    shares = rates[busy] / (limit or peak or 1.0)
    filled = np.clip((shares * BUCKETS).astype(np.int64), 0, BUCKETS - 1)
    whole_ms = float(widths_ms.sum())
    return DirectionRow(
        bytes=total,
        mean_bits_per_s=round(total * 8e3 / whole_ms, 1) if whole_ms else 0.0,
        peak_bits_per_s=round(peak, 1),
        peak_share=round(peak / limit, 4) if limit else None,
        idle=int((~busy).sum()),
        histogram=np.bincount(filled, minlength=BUCKETS).tolist(),
        bursts=int(bursts_ms.size),
        longest_burst_ms=round(float(bursts_ms.max(initial=0.0)), 3),
        median_burst_ms=round(float(np.median(bursts_ms)), 3) if bursts_ms.size else None,
        longest_gap_ms=round(float(gaps_ms.max(initial=0.0)), 3),
        median_gap_ms=round(float(np.median(gaps_ms)), 3) if gaps_ms.size else None,
        busy_share=round(float(widths_ms[busy].sum()) / whole_ms, 4) if whole_ms else 0.0,
        at_limit_share=_share_at_limit(shares) if limit else None,
    )


def _share_at_limit(shares: NDArray[np.float64]) -> float:
    return round(float((shares >= AT_LIMIT_SHARE).mean()), 4) if shares.size else 0.0


def _runs(flags: NDArray[np.bool_], widths_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How long each run of true entries lasts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
    ends = np.concatenate(([0.0], np.cumsum(widths_ms)))
    return ends[edges[1::2]] - ends[edges[::2]]
