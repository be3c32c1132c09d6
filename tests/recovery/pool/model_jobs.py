"""Jobs for the tests of the pool's driver that change over when they are told to, and no sooner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pulsetrain.core.errors import UsageError


class ModelShare:
    """What one job holds. A change takes until `finish`, ranks that were left until the next one.

    One that is `optional` waits until then, and can be changed otherwise.
    """

    def __init__(self, demand):
        self.base, self.placed, self.target = demand, dict(demand.placed), None
        self.optional = False
        self.late = Counter()
        self.wanted, self.kept_stopped = True, False
        self.done = []

    tier = property(lambda self: self.base.tier)
    unit = property(lambda self: self.base.unit)
    waits_for_step = property(lambda self: self.target is not None and self.optional)
    settled = property(lambda self: self.target is None or self.optional)
    resting = property(lambda self: self.target is None and not self.placed)

    def holds(self):
        return Counter(self.placed) | Counter(self.target or {})

    def reachable(self):
        return Counter(self.base.nodes)

    def ending(self):
        return self.late

    def speed(self):
        return float(bool(self.placed))

    def demand(self, order):
        placed = self.placed if self.waits_for_step else self.holds()
        return replace(self.base, order=order, placed=dict(placed), busy=not self.settled)

    def write(self, kind, detail):
        self.done.append((kind, detail))

    def stop(self, reason, wait_s):
        self._change({})

    def give(self, blocks, reason, wait_s, *, optional=False):
        self._change(dict(blocks), optional=optional)

    def _change(self, blocks, *, optional=False):
        if not self.settled:
            raise UsageError("it changes already")
        self.target, self.optional = blocks, optional

    def awaits(self, blocks):
        return self.waits_for_step and self.target == blocks

    def give_way(self, hosts):
        new = Counter(self.target or {}) - Counter(self.placed)
        gives_way = self.waits_for_step and any(host in hosts for host in new)
        if gives_way:
            self.target = None
        return gives_way

    def finish(self):
        self.late = Counter()
        if self.target is not None:
            left = Counter(self.placed) - Counter(self.target)
            self.late = Counter({host: blocks * self.unit for host, blocks in left.items()})
            self.placed, self.target = self.target, None

    def stopped_by_person(self):
        self.placed, self.target, self.wanted, self.kept_stopped = {}, None, False, True

    def uses(self):
        """Devices that its ranks are on or may start on, by host."""
        return Counter({host: blocks * self.unit for host, blocks in self.holds().items()}) + self.late


class ModelJob:
    def __init__(self, demand):
        self.over = False
        self.sharing = ModelShare(demand)
