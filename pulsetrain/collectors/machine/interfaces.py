"""Which network interfaces of a machine are worth sampling.

Those with hardware behind them, and those that may carry the traffic of a job without any: a virtual
interface with a default route, as a container has one, one that the job itself chooses by
GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, and one that a person lists. The host's ends of other containers'
interfaces are none of these. Sources: route(8), linux/route.h, the NCCL user guide for the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "lo"
CHOOSING = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_RTF_UP = 0x1
_IPV6_ANY, _IPV6_WHOLE = "0" * 32, "00"


@dataclass(frozen=True, kw_only=True)
class InterfaceChoice:
    """Says which interfaces count. `listed` are names, `chosen` are the job's own words for some.

    The routes are read from `proc`, the namespace of this process.
    """

    listed: Sequence[str] = ()
    chosen: Sequence[str] = ()
    proc: Path = Path("/proc")

    @classmethod
    def of(
        cls, listed: Sequence[str], environ: Mapping[str, str], proc: Path = Path("/proc")
    ) -> InterfaceChoice:
        """The choice of a node whose ranks have this environment."""
        words = [word for name in CHOOSING for word in _words(environ.get(name, ""))]
        return cls(listed=tuple(listed), chosen=tuple(words), proc=proc)

    def counting(self, devices: Sequence[Path]) -> list[Path]:
        """Of folders of /sys/class/net those that count, in their order."""
        routed = default_routes(self.proc)
        return [d for d in devices if self._counts(d, routed)]

    def _counts(self, device: Path, routed: set[str]) -> bool:
        name = device.name
        if name in self.listed or (device / "device").exists():
            return True
        return name != LOOPBACK and (name in routed or self.names(name))

    def names(self, interface: str) -> bool:
        """Whether the job's own words mean this interface."""
        return any(_names(word, interface) for word in self.chosen)


def default_routes(proc: Path) -> set[str]:
    """Interfaces that a default route leaves by, of both versions of IP. Empty where nothing can be read."""
    found = set()
    for fields in _rows(proc / "net" / "route"):
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and _is_up(fields[3]):
            found.add(fields[0])
    for fields in _rows(proc / "net" / "ipv6_route"):
        if len(fields) == 10 and fields[:2] == [_IPV6_ANY, _IPV6_WHOLE] and _is_up(fields[8]):
            found.add(fields[9])
    return found - {LOOPBACK}


def _is_up(flags: str) -> bool:
    try:
        return bool(int(flags, 16) & _RTF_UP)
    except ValueError:
        return False


def _rows(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []


def _words(value: str) -> list[str]:
    """The words of a list that includes interfaces. One that begins with ^ excludes, and chooses none.

    NCCL takes = at the beginning for the whole list.

    >>> _words("=eth0, eth1"), _words("^lo")
    (['=eth0', '=eth1'], [])
    """
    if value.startswith("^"):
        return []
    sign = "=" if value.startswith("=") else ""
    return [sign + word.strip() for word in value.removeprefix("=").split(",") if word.strip()]


def _names(word: str, interface: str) -> bool:
    """Whether a word of NCCL or gloo means this interface. `=` asks for the whole name, else a beginning
    counts, as in NCCL."""
    return interface == word[1:] if word.startswith("=") else interface.startswith(word)
