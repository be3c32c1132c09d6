"""The peak FLOP/s of devices, from a table with the source of each figure."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from pulsetrain.core.errors import UsageError

COLUMNS = ("device", "dtype", "tflops", "source")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Dense peak of one device in one data type, FLOP/s, and where the figure comes from."""

    device: str
    dtype: str
    flops_per_s: float
    source: str


@cache
def peaks(site: Path | None = None) -> dict[tuple[str, str], Peak]:
    """The table of device peaks by (device, dtype). Lines of the `site` file replace those of the package.

    Raises `UsageError` that names the file and the line for one that cannot be read.
    """
    shipped = files("pulsetrain.analytics").joinpath("tables/device_peaks.csv")
    found = _parsed(shipped.read_text(), "the shipped table")
    if site is not None:
        try:
            text = site.read_text()
        except OSError as error:
            raise UsageError(f"device peaks {site}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"device peaks {site}: it is no text") from error
        found |= _parsed(text, str(site))
    return found


def _parsed(text: str, name: str) -> dict[tuple[str, str], Peak]:
    numbered = [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    found: dict[tuple[str, str], Peak] = {}
    for (at, _), row in zip(numbered[1:], csv.DictReader(line for _, line in numbered), strict=True):
        values = [row.get(column) for column in COLUMNS]
        rate = _rate(values[2])
        if None in values or not rate:
            allowed = f"{','.join(COLUMNS)}, with tflops above 0"
            raise UsageError(f"device peaks {name}, line {at}: allowed: {allowed}")
        device, dtype, _tflops, source = (str(value) for value in values)
        found[device, dtype] = Peak(device=device, dtype=dtype, flops_per_s=rate * 1e12, source=source)
    return found


def _rate(text: str | None) -> float:
    """A rate above 0, else 0."""
    try:
        rate = float(text or "")
    except ValueError:
        return 0.0
    return rate if 0 < rate < math.inf else 0.0


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
