"""Samples ports' counters every millisecond for a short while, as a compact histogram of each.

The counters' files stay open, so that a sample is two reads of a few characters. To wake up costs far more
than to read. Where that is above the budget, there are pauses between windows of samples. Nothing runs while
nobody asks. Rates below are bits per second, shares are of the link's limit.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from array import array
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
BUDGET_RATIO = 0.01
"""of a core for each port"""
AIM_SHARE = 0.9
"""of the budget: the samples have to be made into a row, too"""
LOOK_EVERY = 16
"""samples between two looks at what they cost"""
LONGEST_STRETCH = 3.0
"""With pauses it takes so many times as long at most. Fewer milliseconds are seen if that is too short."""
WINDOW_S = 0.5
"""of samples between two pauses, on average"""
LEAST_WINDOWS = 8
"""that the time asked for is cut into"""
FIRST_SAMPLES = 16
"""are taken before it is known what a sample costs"""
WINDOW_SPREAD = (0.5, 1.5)
"""Windows differ by chance, so that what recurs with each step does not always fall into a pause."""
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

    `bytes` and `mean_bits_per_s` are of the whole time, all else of the time without pauses. `histogram`
    counts the busy milliseconds by share of the limit, or of the busiest millisecond where the limit is not
    known, in tenths. The last entry also holds those above. `idle` counts the idle ones.
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
    """One port over one stretch of sampling. `grown` are counters of congestion that grew, by metric.

    `covered_share` of the `seconds` were sampled. The others were pauses. `cpu_share` is of a core.
    """

    device: str
    samples: int
    seconds: float
    covered_share: float
    period_ms: float
    limit_bits_per_s: float | None
    transmit: DirectionRow
    receive: DirectionRow
    grown: dict[str, int]
    cpu_share: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Samples:
    """Monotonic times in ns and counters in bytes, one entry for each sample.

    A number i in `pauses` says that there was a pause between sample i and the next one.
    """

    times_ns: Integers
    transmit: Integers
    receive: Integers
    pauses: Sequence[int] = ()
    cpu_ns: int = 0
    grown: Mapping[str, int] = field(default_factory=dict)


def ports(net: Path = nic.CLASS, infiniband: Path = rdma.CLASS, *, devices: Sequence[str] = ()) -> list[Port]:
    """The ports of a machine: RDMA ports, and interfaces with hardware. With `devices` only those.

    An RDMA port is named by card and port number, as mlx5_0/1.
    """
    found = [*rdma_ports(infiniband), *_interfaces(net, devices)]
    return [port for port in found if not devices or port.device in devices]


def unreadable(port: Port) -> str:
    """Why a port cannot be sampled, "" where it can.

    Some cards have no such counters (EFA), and some functions of a card may not read theirs.
    """
    for path in (port.transmit, port.receive):
        try:
            text = path.read_text(errors="replace").strip()
        except OSError as error:
            return f"{path}: {error.strerror}"
        if not text.isdecimal():
            return f"{path}: {text[:40]!r} is no number"
    return ""


def rdma_ports(folder: Path = rdma.CLASS) -> Iterator[Port]:
    """The RDMA ports in `folder`."""
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
    budget_ratio: float = BUDGET_RATIO,
    period_ns: int = PERIOD_NS,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    cpu_ns: Callable[[], int] = time.thread_time_ns,
    sleep: Callable[[float], None] = time.sleep,
    chance: random.Random | None = None,
) -> list[Samples]:
    """Sample these ports together for `seconds`. Time that a slow read lost is not made up for.

    It uses `budget_ratio` of a core for each port at most, on average. Where that is too little for all of
    the time, it pauses in between, and takes up to `LONGEST_STRETCH` times as long. With 1 it never pauses.
    Most of the cost is to wake up each millisecond, so that many ports cost little more than one. Run it on a
    thread of its own, because it sleeps. Raises `OSError` where a counter cannot be read.
    """
    share = budget_ratio * len(ports) if budget_ratio < 1 else None
    costs = _Costs(share, monotonic_ns, cpu_ns)
    before = [_others(port) for port in ports]
    costs.expect_again()
    with contextlib.ExitStack() as files:
        fds = [_opened(files, path) for port in ports for path in (port.transmit, port.receive)]
        reader = _Reader(fds, period_ns, monotonic_ns, sleep)
        left_ns = int(seconds * 1e9)
        end_ns = monotonic_ns() + int(LONGEST_STRETCH * left_ns)
        window_ns = min(left_ns, FIRST_SAMPLES * period_ns)  # it tells what samples cost
        usual_ns, chance = min(WINDOW_S * 1e9, left_ns / LEAST_WINDOWS), chance or random.Random()
        while left_ns > 0 and window_ns >= period_ns and len(reader.times_ns) < MOST_SAMPLES:
            pause_ns, used_ns = costs.pause_ns(window_ns), costs.used_ns()
            if pause_ns > 0:
                reader.pause(pause_ns)
            read_ns = reader.read(window_ns, costs.is_spent)
            costs.took(read_ns, costs.used_ns() - used_ns)
            left_ns -= read_ns
            longest_ns = min(left_ns, costs.most_ns(end_ns))
            window_ns = int(min(longest_ns, max(2 * period_ns, usual_ns * chance.uniform(*WINDOW_SPREAD))))
    times_ns = np.array(reader.times_ns, np.int64)
    counted = np.array(reader.counted, np.int64).reshape(-1, len(fds))
    after = [_others(port) for port in ports]
    used_ns = costs.used_ns() // len(ports)
    return [
        Samples(
            times_ns=times_ns,
            transmit=counted[:, 2 * i] * port.scale,
            receive=counted[:, 2 * i + 1] * port.scale,
            pauses=tuple(reader.pauses),
            cpu_ns=used_ns,
            grown=_grown(before[i], after[i]),
        )
        for i, port in enumerate(ports)
    ]


class _Reader:
    """Reads all files every period. A sample that was held up is left out."""

    def __init__(
        self,
        fds: Sequence[int],
        period_ns: int,
        monotonic_ns: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._fds, self._period_ns, self._monotonic_ns, self._sleep = fds, period_ns, monotonic_ns, sleep
        self._due_ns = monotonic_ns()
        self.times_ns, self.counted = array("q"), array("q")
        self.pauses: list[int] = []

    def pause(self, pause_ns: int) -> None:
        """Read nothing for so long."""
        last = len(self.times_ns) - 1
        if last >= 0 and last not in self.pauses[-1:]:
            self.pauses.append(last)
        self._sleep(pause_ns * 1e-9)
        self._due_ns = self._monotonic_ns()

    def read(self, window_ns: int, stop: Callable[[], bool]) -> int:
        """Read for so long, or until `stop` says so. How long that was.

        What follows without a pause goes on in step with it.
        """
        fds, period_ns, monotonic_ns, sleep = self._fds, self._period_ns, self._monotonic_ns, self._sleep
        times_ns, counted, pread = self.times_ns, self.counted, os.pread
        due_ns, held_up_ns = self._due_ns, int(period_ns * HELD_UP_SHARE)
        first_ns, end_ns = due_ns, due_ns + window_ns
        while due_ns < end_ns and len(times_ns) < MOST_SAMPLES:
            begun_ns = monotonic_ns()
            texts = [pread(fd, 24, 0) for fd in fds]
            done_ns = monotonic_ns()
            if done_ns - begun_ns <= held_up_ns:
                times_ns.append(begun_ns)
                counted.extend(map(int, texts))
                if len(times_ns) % LOOK_EVERY == 0 and stop():
                    end_ns = 0
            due_ns = max(due_ns + period_ns, begun_ns)
            sleep((due_ns - done_ns) * 1e-9 if due_ns > done_ns else 0)
        self._due_ns = due_ns
        return due_ns - first_ns


class _Costs:
    """The processor time of this thread beside a budget: a share of the time that passes. None: no limit."""

    def __init__(
        self, budget_ratio: float | None, monotonic_ns: Callable[[], int], cpu_ns: Callable[[], int]
    ) -> None:
        self._aim = None if budget_ratio is None else AIM_SHARE * budget_ratio
        self._monotonic_ns, self._cpu_ns = monotonic_ns, cpu_ns
        self._begun_ns, self._cpu_begun_ns = monotonic_ns(), cpu_ns()
        self._again_ns = self._windows_ns = self._windows_cpu_ns = 0
        self._cost = 0.0  # of a core, while samples are taken

    def used_ns(self) -> int:
        """Processor time so far."""
        return self._cpu_ns() - self._cpu_begun_ns

    def expect_again(self) -> None:
        """What was done so far has to be done once more at the end."""
        self._again_ns = self.used_ns()

    def took(self, window_ns: int, window_cpu_ns: int) -> None:
        """A window of so long used so much. The next one is expected to cost as much, or the mean so far."""
        self._windows_ns += window_ns
        self._windows_cpu_ns += window_cpu_ns
        self._cost = max(window_cpu_ns / window_ns, self._windows_cpu_ns / self._windows_ns)

    def most_ns(self, end_ns: int) -> float:
        """How long a window may be that ends then at the latest."""
        if self._aim is None or not self._cost:
            return end_ns - self._monotonic_ns()
        return (self._aim * (end_ns - self._begun_ns) - self.used_ns() - self._again_ns) / self._cost

    def pause_ns(self, window_ns: int) -> int:
        """How long to wait, so that the budget holds at the end of a window which begins then."""
        if self._aim is None or not self._cost:
            return 0
        needed_ns = (self.used_ns() + self._again_ns + self._cost * window_ns) / self._aim
        return max(0, int(needed_ns - self._passed_ns() - window_ns))

    def is_spent(self) -> bool:
        """Whether nothing is left of the budget. The first window has none, and may be as it is."""
        if self._aim is None or not self._cost:
            return False
        return self.used_ns() + self._again_ns > self._aim * self._passed_ns()

    def _passed_ns(self) -> int:
        return self._monotonic_ns() - self._begun_ns


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
    widths_ns = np.diff(samples.times_ns)
    seen = np.ones(widths_ns.size, np.bool_)
    seen[[i for i in samples.pauses if i < widths_ns.size]] = False
    seconds = float(widths_ns.sum()) / 1e9
    return PortRow(
        device=port.device,
        samples=int(samples.times_ns.size),
        seconds=round(seconds, 4),
        covered_share=round(float(widths_ns[seen].sum()) / 1e9 / seconds, 4) if seconds else 0.0,
        period_ms=round(float(np.median(widths_ns[seen])) / 1e6, 4) if seen.any() else 0.0,
        limit_bits_per_s=port.limit_bits_per_s,
        transmit=_direction(widths_ns, np.diff(samples.transmit), seen, port.limit_bits_per_s),
        receive=_direction(widths_ns, np.diff(samples.receive), seen, port.limit_bits_per_s),
        grown=dict(samples.grown),
        cpu_share=round(samples.cpu_ns / 1e9 / seconds, 5) if seconds else 0.0,
    )


def _direction(
    widths_ns: Integers, moved: Integers, seen: NDArray[np.bool_], limit: float | None
) -> DirectionRow:
    """One direction, of intervals of which those that are not `seen` were pauses."""
    moved = np.maximum(moved, 0)  # a card that was reset in between begins again
    total, whole_ms = int(moved.sum()), float(widths_ns.sum()) / 1e6
    widths_ms, seen_ms = widths_ns / 1e6, float(widths_ns[seen].sum()) / 1e6
    rates = np.where(seen, moved * 8e9 / np.maximum(widths_ns, 1), 0.0)
    peak = float(rates.max(initial=0.0))
    busy = rates > IDLE_SHARE * peak
    idle = seen & ~busy
    bursts_ms, gaps_ms = _runs(busy, widths_ms), _runs(idle, widths_ms)
    shares = rates[busy] / (limit or peak or 1.0)
    filled = np.clip((shares * BUCKETS).astype(np.int64), 0, BUCKETS - 1)
    return DirectionRow(
        bytes=total,
        mean_bits_per_s=round(total * 8e3 / whole_ms, 1) if whole_ms else 0.0,
        peak_bits_per_s=round(peak, 1),
        peak_share=round(peak / limit, 4) if limit else None,
        idle=int(idle.sum()),
        histogram=np.bincount(filled, minlength=BUCKETS).tolist(),
        bursts=int(bursts_ms.size),
        longest_burst_ms=round(float(bursts_ms.max(initial=0.0)), 3),
        median_burst_ms=round(float(np.median(bursts_ms)), 3) if bursts_ms.size else None,
        longest_gap_ms=round(float(gaps_ms.max(initial=0.0)), 3),
        median_gap_ms=round(float(np.median(gaps_ms)), 3) if gaps_ms.size else None,
        busy_share=round(float(widths_ms[busy].sum()) / seen_ms, 4) if seen_ms else 0.0,
        at_limit_share=_share_at_limit(shares) if limit else None,
    )


def _share_at_limit(shares: NDArray[np.float64]) -> float:
    return round(float((shares >= AT_LIMIT_SHARE).mean()), 4) if shares.size else 0.0


def _runs(flags: NDArray[np.bool_], widths_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How long each run of true entries lasts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
    ends = np.concatenate(([0.0], np.cumsum(widths_ms)))
    return ends[edges[1::2]] - ends[edges[::2]]
