"""The traffic of a node's ports as its agent sees it: learned, judged each second, and looked at closely.

A port whose traffic dropped, fluctuates or stopped is sampled every millisecond for some seconds, on a
thread of its own and within a budget, and what came out is an event of kind `port_traffic`. Nothing is
sampled while all ports are steady.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import structlog

from pulsetrain.analytics.machines.traffic_signature import QUIET_SHARE, Traffic, judge
from pulsetrain.collectors.machine import port_sampling
from pulsetrain.collectors.machine.port_sampling import PortRow
from pulsetrain.records.columns import Columns

log = structlog.get_logger()

KEPT_S = 600
"""So much of the past is learned from."""
LOOK_EVERY = 5
"""Samples between two judgements of a port: a judgement costs some hundred microseconds. One that just went
quiet is judged each time, so that a stop is seen at once."""
SAMPLE_S = 5.0
"""of samples. With pauses between them it takes longer."""
AGAIN_S = 300.0
"""A port that stays suspicious is sampled again after so long."""
LEAST_BYTES_PER_S = 1e6
"""A port that usually carries less is not the job's: gossip of the system is no signature."""
LISTED_BYTES_PER_S = 1e4
"""The same of a port that a person says is the job's."""
FAMILIES = ("rdma", "nic")

Sampling = Callable[[str], PortRow | None]


@dataclass
class _Past:
    """A port's counters once a second.

    `skipped_s`: so much of stops was left out, and times after it are earlier by that.
    """

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_S))
    moved: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_S))
    traffic: Traffic = field(default_factory=lambda: Traffic(state="learning"))
    sampled_s: float = -AGAIN_S
    noted: int = 0
    newest: float = 0.0
    skipped_s: float = 0.0
    silent_since_s: float | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether the newest second moved next to nothing of what is usual. False while that is learned."""
        usual = self.traffic.signature
        if usual is None or len(self.moved) < 2:
            return False
        return self.moved[-1] - self.moved[-2] <= QUIET_SHARE * usual.bytes_per_s

    def stays_stopped(self, moved: float, now_s: float) -> bool:
        """Whether a port that had stopped still carries nothing.

        What is usual is not forgotten then, however long it lasts: nothing is learned from silence.
        """
        usual, since_s = self.traffic.signature, self.silent_since_s
        rose, self.newest = moved - self.newest, moved
        if usual is None or since_s is None:
            return False
        if 0 <= rose <= QUIET_SHARE * usual.bytes_per_s:
            self.traffic = replace(self.traffic, quiet_s=now_s - since_s)
            return True
        self.silent_since_s = None
        self.skipped_s += max(0.0, now_s - self.skipped_s - self.times_s[-1] - 1.0)
        return False


class TrafficWatch:
    """Learns from batches of `metrics`, and keeps events until they are taken. Call it from one thread.

    `sample` looks at one port by name every millisecond, and blocks meanwhile. None: it could not. `listed`
    names the ports that are the job's. Empty: RDMA ports, else busy network interfaces. `budget_ratio` is the
    share of a core that a close look may use.
    """

    def __init__(
        self,
        node: str,
        sample: Sampling | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
        *,
        listed: Sequence[str] = (),
        budget_ratio: float = port_sampling.BUDGET_RATIO,
    ) -> None:
        self._node, self._listed = node, frozenset(listed)
        self._sample = sample or partial(sample_port, budget_ratio=budget_ratio)
        self._start = start or _on_a_thread
        self._ports: dict[str, dict[str, _Past]] = {family: {} for family in FAMILIES}
        self._rows: queue.SimpleQueue[Columns] = queue.SimpleQueue()
        self._sampling = threading.Lock()
        self._waiting: dict[str, _Past] = {}  # suspicious ports that were not looked at yet, oldest first

    @property
    def gauges(self) -> Mapping[str, float]:
        """For the heartbeat. `traffic_bytes_per_s` is what the job's ports usually carry together.

        `traffic_stopped_s`: for how long none of them carries anything, 0 while one does. Empty while nothing
        is known.
        """
        known = [p.traffic for p in self._of_job() if p.traffic.signature is not None]
        if not known:
            return {}
        stopped = all(traffic.state == "stop" for traffic in known)
        return {
            "traffic_bytes_per_s": sum(t.signature.bytes_per_s for t in known if t.signature),
            "traffic_stopped_s": min(t.quiet_s for t in known) if stopped else 0.0,
        }

    def note(self, batch: Columns, now_ns: int) -> None:
        """Take a batch of samples of one moment."""
        for family, ports in self._ports.items():
            totals = _totals(batch, family)
            for device, moved in totals.items():
                past = ports.setdefault(device, _Past())
                if past.stays_stopped(moved, now_ns / 1e9):
                    continue
                past.times_s.append(now_ns / 1e9 - past.skipped_s)
                past.moved.append(moved)
                past.noted += 1
                if past.noted % LOOK_EVERY == 0 or past.is_quiet:
                    self._judge(device, past, now_ns / 1e9)
        self._sample_next(now_ns)

    def take(self) -> list[Columns]:
        """The events since the last call."""
        return [self._rows.get_nowait() for _ in range(self._rows.qsize())]

    def _of_job(self) -> Iterable[_Past]:
        """The listed ports, else RDMA ports, else interfaces, that usually carry something.

        Heartbeats ask on their own thread.
        """
        if self._listed:
            named = [item for ports in self._ports.values() for item in list(ports.items())]
            return [p for d, p in named if d in self._listed and self._carries(d, p.traffic)]
        ports = self._ports["rdma"] or self._ports["nic"]
        return [p for d, p in list(ports.items()) if self._carries(d, p.traffic)]

    def _carries(self, device: str, traffic: Traffic) -> bool:
        least = LISTED_BYTES_PER_S if device in self._listed else LEAST_BYTES_PER_S
        return traffic.signature is not None and traffic.signature.bytes_per_s >= least

    def _judge(self, device: str, past: _Past, now_s: float) -> None:
        past.traffic = judge(np.array(past.times_s), np.array(past.moved))
        if past.traffic.state == "stop":
            past.silent_since_s = now_s - past.traffic.quiet_s
        suspicious = past.traffic.state in ("drop", "fluctuation", "stop")
        suspicious = suspicious and self._carries(device, past.traffic)
        if not suspicious:
            self._waiting.pop(device, None)
        elif now_s - past.sampled_s >= AGAIN_S:
            self._waiting[device] = past

    def _sample_next(self, now_ns: int) -> None:
        """Look closely at the port that waits longest. One after the other: a port that has stopped is not
        judged again, so it must not miss its turn."""
        if self._waiting and self._sampling.acquire(blocking=False):
            device = next(iter(self._waiting))
            past = self._waiting.pop(device)
            past.sampled_s = now_ns / 1e9
            self._start(partial(self._look_closely, device, past.traffic, now_ns))

    def _look_closely(self, device: str, traffic: Traffic, now_ns: int) -> None:
        try:
            row = self._sample(device)
            if row is not None:
                self._rows.put(event(self._node, row, now_ns, why=traffic.state))
        except Exception:
            log.exception("port_sampling_failed", device=device)
        finally:
            self._sampling.release()


def event(node: str, row: PortRow, now_ns: int, *, why: str) -> Columns:
    """The histogram of a port as an event of kind `port_traffic`. `why` is the state of its traffic."""
    values = {
        "ts": now_ns,
        "node": node,
        "job": "",
        "attempt": -1,
        "rank": -1,
        "kind": "port_traffic",
        "actor": "agent",
        "detail": json.dumps({"why": why, **row}),
    }
    return Columns.from_rows("events", [values])


def sample_port(device: str, *, budget_ratio: float) -> PortRow | None:
    """Sample one port of this machine for `SAMPLE_S`. None where it is not there, or cannot be sampled."""
    port = next(iter(port_sampling.ports(devices=(device,))), None)
    if port is None or port_sampling.unreadable(port):
        return None
    (samples,) = port_sampling.sample([port], seconds=SAMPLE_S, budget_ratio=budget_ratio)
    return port_sampling.summary(port, samples)


def _totals(batch: Columns, family: str) -> dict[str, float]:
    """Bytes that each device has sent and received so far."""
    names = batch.column("name")
    wanted = names.equals(f"{family}_transmit_bytes") | names.equals(f"{family}_receive_bytes")
    if not wanted.any():
        return {}
    devices, values = batch.column("device").to_list(), batch.column("value").data
    totals: dict[str, float] = {}
    for i in np.flatnonzero(wanted).tolist():
        totals[str(devices[i])] = totals.get(str(devices[i]), 0.0) + float(values[i])
    return totals


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="port sampling", daemon=True).start()
