"""What hosts rendezvous stores beside a hub, as jobs see it."""

from __future__ import annotations

import ipaddress
from typing import Protocol


class StoreHost(Protocol):
    """Hosts stores beside the hub."""

    def prepare(self) -> None:
        """A job of several nodes forms: its first store will be needed soon."""
        ...

    async def open(self, job: str) -> int:
        """Port of a new store, 0 where this hub hosts none. The job's store before it ends.

        Raises `Unavailable` where there should be one.
        """
        ...

    def give_up(self, job: str) -> None:
        """Nodes of this job do not reach these stores: open none for it any more."""
        ...


class NoStores:
    """A hub that hosts no store."""

    def prepare(self) -> None:
        """Do nothing."""

    async def open(self, job: str) -> int:
        """0."""
        return 0

    def give_up(self, job: str) -> None:
        """Do nothing."""


def is_loopback(address: str) -> bool:
    """Whether an address is reached on its own machine alone.

    >>> [is_loopback(a) for a in ("127.0.0.5", "::1", "localhost", "10.0.0.5", "head.cluster")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
