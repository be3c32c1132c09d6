"""What kind of machine this is: only machines of one kind are compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def describe(gpus: Sequence[str] = (), *, proc: Path = Path("/proc"), cores: int | None = None) -> str:
    """Name the processor, the number of its cores and the models of the GPUs. What is unknown is left out.

    `proc` is the root of /proc. `cores` is what the operating system reports, where it is not given.
    """
    count = cores or os.cpu_count() or 0
    parts = [_processor(proc), f"{count} cores" if count else ""]
    parts += [f"{number} x {model}" for model, number in sorted(Counter(gpus).items())]
    return ", ".join(part for part in parts if part)


def features(*, proc: Path = Path("/proc")) -> str:
    """What decides how a processor rounds, beside its name: what it can do, and on ARM which one it is.

    One name covers several processors of a cloud, and ARM has none. "" where it is not known.

    >>> features(proc=Path("/nowhere"))
    ''
    """
    wanted = ("flags", "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
    found = {line for line in _lines(proc) if line.partition(":")[0].strip() in wanted}
    return "; ".join(sorted(" ".join(line.split()) for line in found))


def _lines(proc: Path) -> list[str]:
    try:
        return (proc / "cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []


def _processor(proc: Path) -> str:
    names = (line.partition(":")[2].strip() for line in _lines(proc) if line.startswith("model name"))
    return next(names, "")
