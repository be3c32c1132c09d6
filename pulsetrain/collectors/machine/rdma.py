"""Samples the RDMA ports of a machine from /sys/class/infiniband: counters, state and rate.

A failed read is a missing sample, never a zero. A file that says it cannot be read (EINVAL on restricted
functions, "N/A (no PMA)") is not read again, because each attempt puts an error into the kernel's log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulsetrain.collectors.machine.samples import Sample, metrics
from pulsetrain.records.columns import Columns
from pulsetrain.records.counters import counter_files, counters, numbered, rate_bits_per_s

CLASS = Path("/sys/class/infiniband")
LAYERS = {"InfiniBand": 1.0, "Ethernet": 2.0}
NO_COUNT = 2**63 - 16  # larger numbers mean "not supported", because no counter gets so far
_FOR_GOOD = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.ENODATA})


class RdmaSampler:
    """Samples every port. Devices are named "mlx5_0/1": card and port number."""

    def __init__(self, path: Path = CLASS, *, node: str = "") -> None:
        self._path, self._node = path, node
        self._counters = counter_files()
        self._unreadable: set[Path] = set()
        self.failed_reads = 0

    @property
    def blind(self) -> str:
        """Why there is nothing to sample. Empty if there is something."""
        return "" if any(self._ports()) else f"no port under {self._path}"

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Files that are no longer read, relative to the class folder."""
        return tuple(sorted(str(p.relative_to(self._path)) for p in self._unreadable))

    def sample(self, now_ns: int) -> Columns:
        """Return one batch of `metrics`, all stamped `now_ns` (UTC)."""
        samples = [s for device, port in self._ports() for s in self._port(device, port)]
        return metrics(self._node, samples, now_ns)

    def _ports(self) -> Iterator[tuple[str, Path]]:
        try:
            cards = sorted(self._path.iterdir())
        except OSError:
            return
        for card in cards:
            ports = card / "ports"
            if ports.is_dir():
                for port in sorted(ports.iterdir()):
                    yield f"{card.name}/{port.name}", port

    def _port(self, device: str, port: Path) -> Iterator[Sample]:
        found: set[str] = set()
        for counter in self._counters:
            if counter.metric in found:
                continue
            text = self._read(port / counter.folder / counter.file)
            if text is not None and text.isdecimal() and int(text) < NO_COUNT:
                found.add(counter.metric)
                yield device, counter.metric, float(int(text) * counter.scale)
        yield from self._state(device, port)

    def _state(self, device: str, port: Path) -> Iterator[Sample]:
        for file, metric in (("state", "rdma_port_state"), ("phys_state", "rdma_port_physical_state")):
            known = numbered(self._read(port / file) or "")
            if known is not None:
                yield device, metric, float(known[0])
        rate = rate_bits_per_s(self._read(port / "rate") or "")
        if rate is not None:
            yield device, "rdma_link_rate_bits_per_s", rate
        layer = LAYERS.get(self._read(port / "link_layer") or "")
        if layer is not None:
            yield device, "rdma_link_layer", layer

    def _read(self, path: Path) -> str | None:
        """Return the stripped text of a file, or None. A file that will never be readable is remembered."""
        if path in self._unreadable:
            return None
        try:
            text = path.read_text(errors="replace").strip()
        except FileNotFoundError:
            return None  # not every card has every counter
        except OSError as error:
            self.failed_reads += 1
            if error.errno in _FOR_GOOD:
                self._unreadable.add(path)
            return None
        if text.startswith("N/A"):
            self._unreadable.add(path)
            return None
        return text


def describe(path: Path = CLASS) -> list[dict[str, Any]]:
    """Describe every port: device, state, rate, card, each counter with unit and saturation.

    What could not be read is left out.
    """
    sampler = RdmaSampler(path)
    table = counters()
    described: list[dict[str, Any]] = []
    for device, port in sampler._ports():
        values = {metric: value for _, metric, value in sampler._port(device, port)}
        card = port.parent.parent
        described.append(
            {
                "device": device,
                "state": sampler._read(port / "state"),
                "physical_state": sampler._read(port / "phys_state"),
                "link_layer": sampler._read(port / "link_layer"),
                "rate_bits_per_s": values.get("rdma_link_rate_bits_per_s"),
                "card": sampler._read(card / "hca_type"),
                "board": sampler._read(card / "board_id"),
                "firmware": sampler._read(card / "fw_ver"),
                "counters": {
                    m: {"value": int(v), "unit": table[m].unit, "saturated": table[m].saturated(v)}
                    for m, v in values.items()
                    if m in table
                },
                "unreadable": [f for f in sampler.unreadable if f.startswith(f"{card.name}/")],
            }
        )
    return described
