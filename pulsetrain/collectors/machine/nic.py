"""Samples the network interfaces of a machine from /sys/class/net and from what `ethtool -S` prints.

`InterfaceChoice` says which interfaces count. A file or a name that an interface lacks gives no sample, never
a zero, and is not asked for again. ethtool's ioctl needs no privilege, but a card may ask its firmware, so it
is used once in ten seconds. Source: linux/ethtool.h.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import fnmatch
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pulsetrain.collectors.machine.interfaces import InterfaceChoice
from pulsetrain.collectors.machine.kernel_files import read_text
from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.records.columns import Columns
from pulsetrain.records.counters import Counter, counters

CLASS = Path("/sys/class/net")
DRIVER_PERIOD_NS = 10_000_000_000
UP = 1.0

_SIOCETHTOOL = 0x8946
_GSSET_INFO, _GSTRINGS, _GSTATS = 0x37, 0x1B, 0x1D
_SS_STATS = 1
_NAME_BYTES = 32
_MOST_NAMES = 20_000

Read = Callable[[str], Mapping[str, int]]


class NicSampler:
    """Samples every interface that counts, by default one with hardware or a default route.

    `driver` reads the statistics of one interface by name.
    """

    def __init__(
        self,
        path: Path = CLASS,
        *,
        node: str = "",
        driver: Read | None = None,
        choice: InterfaceChoice | None = None,
    ) -> None:
        self._path, self._node, self._choice = path, node, choice or InterfaceChoice()
        self._driver = driver or driver_statistics
        known = counters("nic").values()
        self._files = [c for c in known if c.folder != "ethtool"]
        self._names = [c for c in known if c.folder == "ethtool"]
        self._unreadable: set[Path] = set()
        self._without: set[str] = set()
        self._asked_ns = 0
        self._seen: list[Path] = []
        self._counting: list[Path] = []

    @property
    def blind(self) -> str:
        """Why there is nothing to sample. Empty if there is something."""
        return "" if self._devices() else f"no network hardware and no default route under {self._path}"

    def sample(self, now_ns: int) -> Columns:
        """Return one batch of `metrics`, all stamped `now_ns` (UTC)."""
        asks = now_ns - self._asked_ns >= DRIVER_PERIOD_NS
        if asks:
            self._asked_ns, self._seen = now_ns, []  # routes may have changed
        rows = [(d.name, *s) for d in self._devices() for s in self._device(d, asks)]
        return metrics(self._node, rows, now_ns)

    def _devices(self) -> list[Path]:
        try:
            devices = sorted(self._path.iterdir())
        except OSError:
            return []
        if devices != self._seen:
            self._seen, self._counting = devices, self._choice.counting(devices)
        return self._counting

    def _device(self, device: Path, asks: bool) -> Iterator[tuple[str, float]]:
        for counter in self._files:
            value = self._number(device / counter.folder / counter.file)
            if value is not None and value >= 0:
                yield counter.metric, float(value * counter.scale)
        if asks and device.name not in self._without:
            yield from self._statistics(device.name)
        yield from self._state(device)

    def _statistics(self, device: str) -> Iterator[tuple[str, float]]:
        try:
            statistics = self._driver(device)
        except OSError:
            self._without.add(device)
            return
        yield from ((metric, float(value)) for metric, value in _named(statistics, self._names))

    def _state(self, device: Path) -> Iterator[tuple[str, float]]:
        state = self._text(device / "operstate")
        if state in ("up", "down", "lowerlayerdown"):
            yield "nic_port_state", UP if state == "up" else 0.0
        speed = self._number(device / "speed")
        if speed is not None and speed > 0:  # -1: not known
            yield "nic_link_rate_bits_per_s", speed * 1e6

    def _number(self, path: Path) -> int | None:
        text = self._text(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def _text(self, path: Path) -> str:
        if path in self._unreadable:
            return ""
        try:
            return read_text(path).strip()
        except FileNotFoundError:
            self._unreadable.add(path)
        except OSError:
            return ""  # the speed of an interface that is down: EINVAL until it is up
        return ""


def congestion(statistics: Mapping[str, int]) -> dict[str, int]:
    """Counters of congestion by metric, of what `driver_statistics` returned: pauses, discards."""
    known = [c for c in counters("nic").values() if c.folder == "ethtool" and c.reveals == "congestion"]
    return dict(_named(statistics, known))


def _named(statistics: Mapping[str, int], known: Iterable[Counter]) -> Iterator[tuple[str, int]]:
    for counter in known:
        values = [v for name, v in statistics.items() if fnmatch.fnmatchcase(name, counter.file)]
        if values:
            yield counter.metric, sum(values) * counter.scale


def driver_statistics(device: str) -> Mapping[str, int]:
    """Return what `ethtool -S` prints of one interface. Raises `OSError` if its driver has no statistics."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        info = bytearray(struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        _ioctl(sock, device, info)
        mask, count = struct.unpack_from("QI", info, 8)
        if not mask or not 0 < count <= _MOST_NAMES:
            return {}
        names = bytearray(struct.pack("III", _GSTRINGS, _SS_STATS, count) + bytes(count * _NAME_BYTES))
        _ioctl(sock, device, names)
        values = bytearray(struct.pack("II", _GSTATS, count) + bytes(count * 8))
        _ioctl(sock, device, values)
    returned = struct.unpack_from("I", values, 4)[0]
    cells = [names[12 + i * _NAME_BYTES : 12 + (i + 1) * _NAME_BYTES] for i in range(min(count, returned))]
    numbers = struct.unpack_from(f"{len(cells)}Q", values, 8)
    texts = [bytes(c).split(b"\0", 1)[0].decode(errors="replace").strip() for c in cells]
    return dict(zip(texts, numbers, strict=True))


def _ioctl(sock: socket.socket, device: str, data: bytearray) -> None:
    """Make one ethtool request. The answer is in `data`."""
    buffer = array.array("B", data)
    address, _ = buffer.buffer_info()
    request = struct.pack("16sP", device.encode()[:15], address) + bytes(16)
    fcntl.ioctl(sock.fileno(), _SIOCETHTOOL, request)
    data[:] = ctypes.string_at(address, len(data))
