"""Which ports of a large fleet are worth a look at their traffic: all of them are asked at once.

To judge one port takes a good part of a millisecond, and a fleet has ten thousand. So most are passed over
here: those whose newest windows are neither low nor restless, and that carried something lately. Conditions
are those of `network`, or weaker ones. So no port is passed over that would be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsetrain.analytics.machines.metric_series import NS_PER_S
from pulsetrain.analytics.machines.network_config import NetworkConfig
from pulsetrain.analytics.machines.network_ports import RECEIVE, TRANSMIT, Port
from pulsetrain.records.counters import every_counter

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SAMPLES_NEEDED = 5  # of which four have counted something since the one before


def worth_a_look(ports: Sequence[Port], steps_ns: Ints, config: NetworkConfig) -> tuple[list[int], int]:
    """The places of the ports that have to be judged one by one, and how many others carry traffic.

    `steps_ns` are the times at which the job began its steps, rising.
    """
    regular = [i for i, port in enumerate(ports) if _regular(port)]
    others = sorted(set(range(len(ports))) - set(regular))
    if not regular:
        return others, 0
    flows = _Flows.of([ports[i] for i in regular])
    carries = flows.total > 0
    looked_at = carries & (flows.silent_s >= config.stop_s)
    for which, windows in flows.windows(steps_ns):
        looked_at[which] |= carries[which] & _changed(windows, config)
    return sorted([*others, *np.array(regular)[looked_at].tolist()]), int((carries & ~looked_at).sum())


def _regular(port: Port) -> bool:
    """Whether all traffic of a port was sampled at the same times, and often enough."""
    times = [port.samples[metric][0] for metric in (TRANSMIT, RECEIVE) if metric in port.samples]
    return bool(times) and len(times[0]) >= SAMPLES_NEEDED and np.array_equal(times[0], times[-1])


def _changed(windows: Floats, config: NetworkConfig) -> NDArray[np.bool_]:
    """Whether the newest windows of a port [port, window] are all low, or differ much from each other."""
    changed = np.zeros(len(windows), np.bool_)
    if windows.shape[1] >= 3 * config.drop_windows:
        usual = np.median(windows[:, : -config.drop_windows], axis=1)
        changed |= (windows[:, -config.drop_windows :] < config.drop_ratio * usual[:, None]).all(axis=1)
    if windows.shape[1] >= 4 * config.spread_windows:
        usual = np.median(windows[:, : -config.spread_windows], axis=1)
        changed |= windows[:, -config.spread_windows :].std(axis=1) >= config.spread_share * usual
    return changed


@dataclass(frozen=True, kw_only=True)
class _Flows:
    """What ports moved since their first sample, one port after the other.

    Port i has the entries from `first[i]` to `first[i + 1]`. `edges_ns` are times of samples, `moved` the
    bytes until then, `grew` those since the sample before.
    """

    first: Ints
    edges_ns: Ints
    grew: Floats
    moved: Floats

    @classmethod
    def of(cls, ports: Sequence[Port]) -> _Flows:
        """The flows of ports that `_regular` accepts."""
        main = [port.samples[TRANSMIT if TRANSMIT in port.samples else RECEIVE][0] for port in ports]
        count = np.array([len(times) for times in main], np.int64)
        first = np.append(0, np.cumsum(count))
        grew = np.zeros(first[-1])
        for metric in (TRANSMIT, RECEIVE):
            grew += _increases(ports, metric, first)
        kept = np.ones(first[-1], np.bool_)
        kept[first[:-1]] = False  # nothing is known before the first sample
        begin = first - np.arange(len(first))
        moved = np.cumsum(grew[kept])
        base = np.append(0.0, moved)[begin[:-1]]
        return cls(
            first=begin,
            edges_ns=np.concatenate(main)[kept],
            grew=grew[kept],
            moved=moved - np.repeat(base, count - 1),
        )

    @property
    def total(self) -> Floats:
        """Bytes that each port moved."""
        return np.asarray(self.moved[self.first[1:] - 1])

    @property
    def silent_s(self) -> Floats:
        """For how long each port has moved nothing at the end."""
        active = np.where(self.grew > 0, np.arange(len(self.grew)), -1)
        last = np.maximum(np.maximum.reduceat(active, self.first[:-1]), self.first[:-1])
        return np.asarray((self.edges_ns[self.first[1:] - 1] - self.edges_ns[last]) / NS_PER_S)

    def windows(self, steps_ns: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Ports, and the bytes of each of their windows [port, window], as `network` cuts them.

        A window is as many whole steps as three samples take, else three samples.
        """
        low = np.searchsorted(steps_ns, self.edges_ns[self.first[:-1]])
        high = np.searchsorted(steps_ns, self.edges_ns[self.first[1:] - 1], side="right")
        count, few = np.diff(self.first), high - low <= 3
        for size in np.unique(count[few]).tolist():
            which = np.flatnonzero(few & (count == size))
            yield which, np.diff(self.moved[self.first[which, None] + np.arange(size)][:, ::3], axis=1)
        if few.all():
            return
        period_ns = self._period_ns()
        for begin, end in np.unique(np.stack([low, high])[:, ~few], axis=1).T.tolist():
            begins = steps_ns[begin:end]
            step_ns = float(np.median(np.diff(begins)))
            stride = np.ceil(3 * period_ns / step_ns) if step_ns > 0 else np.ones(len(count))
            here = ~few & (low == begin) & (high == end)
            for each in np.unique(stride[here]).tolist():
                which = np.flatnonzero(here & (stride == each))
                yield which, np.diff(self._moved_until(which, begins[:: max(1, int(each))]), axis=1)

    def _period_ns(self) -> Floats:
        """The median time between two samples of each port."""
        owner = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        apart, inside = np.diff(self.edges_ns), owner[1:] == owner[:-1]
        apart, owner = apart[inside], owner[1:][inside]
        ordered = apart[np.lexsort((apart, owner))]
        count = np.bincount(owner)
        begin = np.cumsum(count) - count
        return np.asarray((ordered[begin + (count - 1) // 2] + ordered[begin + count // 2]) / 2)

    def _moved_until(self, which: Ints, times_ns: Ints) -> Floats:
        """Bytes that some ports moved until times within their samples [port, time]."""
        origin = int(min(self.edges_ns.min(), times_ns[0]))
        us = (self.edges_ns - origin) // 1000  # a microsecond more or less does not matter here
        span = int(max(us.max(), (times_ns[-1] - origin) // 1000)) + 1
        keys = np.repeat(np.arange(len(self.first) - 1) * span, np.diff(self.first)) + us
        asked = which[:, None] * span + (times_ns - origin) // 1000
        begin, end = self.first[which, None], self.first[which + 1, None]
        right = np.clip(np.searchsorted(keys, asked), begin + 1, end - 1)
        apart = np.maximum(keys[right] - keys[right - 1], 1)
        share = np.clip((asked - keys[right - 1]) / apart, 0.0, 1.0)
        return np.asarray(self.moved[right - 1] + share * (self.moved[right] - self.moved[right - 1]))


def _increases(ports: Sequence[Port], metric: str, first: Ints) -> Floats:
    """What a counter counted since the sample before, 0 where that is not known, for all samples of ports."""
    grew = np.zeros(first[-1])
    have = [i for i, port in enumerate(ports) if metric in port.samples]
    if have:
        values = np.concatenate([ports[i].samples[metric][1] for i in have])
        steps = np.nan_to_num(every_counter()[metric].increases(values))
        sizes = np.array([first[i + 1] - first[i] for i in have])
        rows = np.repeat(first[have] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        grew[rows[1:]] = steps
        grew[first[:-1]] = 0.0
    return grew
