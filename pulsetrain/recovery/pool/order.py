"""In which order jobs change, so that no device is given to one job while another is still on it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Devices = Callable[[str], int]
"""How many devices a machine has."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one job holds now and what it is to hold, in devices by host."""

    job: str
    held: Mapping[str, int]
    after: Mapping[str, int]

    def more(self) -> dict[str, int]:
        """Devices that it takes in addition, by host."""
        added = {host: devices - self.held.get(host, 0) for host, devices in self.after.items()}
        return {host: devices for host, devices in added.items() if devices > 0}

    def leaves(self, hosts: Iterable[str]) -> bool:
        """Whether it gives up devices on one of these hosts."""
        return any(self.held.get(host, 0) > self.after.get(host, 0) for host in hosts)


def fits(change: Change, used: Mapping[str, int], devices: Devices) -> bool:
    """Whether a job may change now. `used` are the devices in use by host, those of all jobs.

    >>> fits(Change(job="j", held={}, after={"x": 2}), {"x": 3}, lambda host: 4)
    False
    """
    return not full(change, used, devices)


def full(change: Change, used: Mapping[str, int], devices: Devices) -> set[str]:
    """The hosts where a job cannot take what it is given yet."""
    return {host for host, more in change.more().items() if used.get(host, 0) + more > devices(host)}


def tied(changes: Sequence[Change], used: Mapping[str, int], devices: Devices) -> list[Change]:
    """Jobs that wait for each other in a circle: one of them must stop before any can change.

    None of `changes` fits now. Those that wait for something else are left out.

    >>> a = Change(job="a", held={"x": 1}, after={"y": 1})
    >>> b = Change(job="b", held={"y": 1}, after={"x": 1})
    >>> [change.job for change in tied([a, b], {"x": 1, "y": 1}, lambda host: 1)]
    ['a', 'b']
    >>> tied([a], {"x": 1, "y": 1}, lambda host: 1)
    []
    """
    left = list(changes)
    while True:
        then = Counter(used)
        for change in left:
            then.subtract(change.held)
            then.update(change.after)
        possible = [c for c in left if all(then[host] <= devices(host) for host in c.more())]
        if len(possible) == len(left):
            break
        left = possible
    wanted = {host for change in left for host in full(change, used, devices)}
    return [change for change in left if change.leaves(wanted)]
