"""What copies between each memory node and each GPU say. Pure.

A GPU's own PCIe link says what a copy from the memory next to it must reach, also on a machine with one GPU.
The way from other memory nodes crosses links between processors, whose rate no file tells. There the other
GPUs of the machine say what is usual.

Another job may copy over the same PCIe switch meanwhile. So a way that is slow beside its own link is
measured again for longer, and then it is told. It fails where it is slower than any sharing would make it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from pulsetrain.diagnostics.measurement import Check
from pulsetrain.diagnostics.pcie import LEAST_SHARE, PcieLink

LEAST_PEERS = 3
"""other GPUs, before these say what is usual"""
SLOW_SHARE = 0.5
"""of what is usual"""
FAILING_SHARE = 0.1
"""of what the link promises. Between this and half of it others may use the same switch"""


@dataclass(frozen=True, kw_only=True)
class HostLink:
    """Copies between pinned memory and one GPU, in bytes a second of the slower direction.

    `memory` is the memory node, -1 where the machine has one alone. `pcie` is None where the link is unknown.
    `right` is whether the bytes survived.
    """

    gpu: int
    uuid: str
    memory: int
    bytes_per_s: float
    pcie: PcieLink | None = None
    right: bool = True

    @property
    def near(self) -> bool:
        """Whether no link between processors is on the way, as far as is known."""
        return self.memory < 0 or (self.pcie is not None and self.pcie.near == self.memory)


def checks(links: Sequence[HostLink], *, encrypted: bool = False) -> list[Check]:
    """One check for each way. With `encrypted` memory the links themselves promise nothing."""
    return [_check(link, links, encrypted=encrypted) for link in links]


def slow(links: Sequence[HostLink], *, encrypted: bool = False) -> list[HostLink]:
    """Those that are to be measured again before anything is said of them."""
    return [
        link
        for link in links
        if link.right
        and link.bytes_per_s
        < max(_usual(link, encrypted=encrypted), _limit(link, links, encrypted=encrypted))
    ]


def better(first: Sequence[HostLink], again: Sequence[HostLink]) -> list[HostLink]:
    """Each way with the better one of its measurements. Bytes that changed once are wrong."""
    second = {(link.gpu, link.memory): link for link in again}
    found = []
    for link in first:
        other = second.get((link.gpu, link.memory), link)
        best = max(link, other, key=lambda each: each.bytes_per_s)
        found.append(replace(best, right=link.right and other.right))
    return found


def _check(link: HostLink, links: Sequence[HostLink], *, encrypted: bool) -> Check:
    return Check(
        name=f"gpu{link.gpu}_host_link" + ("" if link.memory < 0 else f"_memory{link.memory}"),
        value=link.bytes_per_s,
        unit="B/s",
        limit=_limit(link, links, encrypted=encrypted),
        right=link.right,
        detail=f"{link.uuid}, {link.pcie or 'PCIe link not known'}{_note(link, encrypted=encrypted)}",
    )


def _note(link: HostLink, *, encrypted: bool) -> str:
    usual = _usual(link, encrypted=encrypted)
    return f", {link.bytes_per_s / usual * LEAST_SHARE:.0%} of it" if link.bytes_per_s < usual else ""


def _usual(link: HostLink, *, encrypted: bool) -> float:
    """What a healthy link that nobody else uses reaches. 0 where that is not known."""
    if link.near and link.pcie is not None and not encrypted:
        return LEAST_SHARE * link.pcie.bytes_per_s
    return 0.0


def _limit(link: HostLink, links: Sequence[HostLink], *, encrypted: bool) -> float:
    """The least rate that passes. 0 where nothing says what is usual: then the hub compares machines."""
    if link.near and link.pcie is not None and not encrypted:
        return FAILING_SHARE * link.pcie.bytes_per_s
    peers = [o.bytes_per_s for o in links if o.gpu != link.gpu and o.near == link.near]
    enough = len({o.gpu for o in links if o.gpu != link.gpu and o.near == link.near}) >= LEAST_PEERS
    return SLOW_SHARE * median(peers) if enough else 0.0
