"""The peak FLOP/s of devices, from a table with the source of each figure."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from pulsetrain.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peak of one device in one data type, FLOP/s, and where the figure comes from."""

    device: str
    dtype: str
    flops_per_s: float
    source: str


@cache
def peaks(site: Path | None = None) -> dict[tuple[str, str], Peak]:
    """The table of device peaks by (device, dtype). Lines of the `site` file replace those of the package."""
    texts = [files("pulsetrain.analytics").joinpath("tables/device_peaks.csv").read_text()]
    if site is not None:
        try:
            texts.append(site.read_text())
        except OSError as error:
            raise UsageError(f"device peaks {site}: {error.strerror}") from error
    rows = [r for text in texts for r in csv.DictReader(x for x in text.splitlines() if x[:1] != "#")]
    return {
        (r["device"], r["dtype"]): Peak(
            device=r["device"], dtype=r["dtype"], flops_per_s=float(r["tflops"]) * 1e12, source=r["source"]
        )
        for r in rows
    }


def peak(device: str, dtype: str, site: Path | None = None) -> Peak:
    """The peak of one device. Raises `UsageError` that names the known ones for another device.

    >>> peak("H100-SXM", "bf16").flops_per_s / 1e12
    989.4
    """
    known = peaks(site)
    if (device, dtype) not in known:
        allowed = ", ".join(sorted(f"{d}/{t}" for d, t in known))
        raise UsageError(f"device {device}/{dtype}: no peak on record; known: {allowed}")
    return known[device, dtype]
