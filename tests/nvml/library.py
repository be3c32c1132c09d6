"""A libnvidia-ml.so.1 of our own, built with `cc`: the real binding and the real collector call it.

It stands in for NVIDIA's library alone. The values, events and losses of its GPUs lie in a file that all
processes share, so a test changes them while an agent reads.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
STATE = "PULSETRAIN_TEST_NVML"
XID = 0x8
XID_AND_ECC = 0x8 | 0x1 | 0x2

HEALTHY = {
    "clock_sm": 1980, "clock_memory": 2619, "event_reasons": 0, "power": 345_000, "energy": 1_000_000,
    "temperature": 60, "utilization": 97, "memory_activity": 40, "memory_used": 10e9, "memory_total": 80e9,
    "pcie_transmit": 1000, "pcie_receive": 2000, "pcie_generation": 5, "pcie_generation_max": 5,
    "pcie_width": 16, "pcie_width_max": 16, "pcie_replays": 3, "ecc_corrected": 0, "ecc_uncorrected": 0,
    "rows_correctable": 0, "rows_uncorrectable": 0, "rows_pending": 0, "rows_failed": 0, "recovery_action": 0,
    "nvlink_crc_flit": 0, "nvlink_crc_data": 0, "nvlink_replays": 0, "nvlink_recoveries": 0,
    "nvlink_transmit": 18, "nvlink_receive": 18, "nvlink_bad": 3,
    "nvlink5_malformed": 0, "nvlink5_receive_errors": 0, "nvlink5_integrity": 0, "nvlink5_failed": 0,
    "nvlink5_recoveries": 0, "numa": 1, "fabric_state": 3, "fabric_clique": 4,
    "gpm_sm": 81, "gpm_tensor": 52, "gpm_memory": 33, "event_types": XID_AND_ECC,
    "set_clock_graphics": 1980, "set_clock_memory": 2619, "set_power": 700_000, "clocks_restricted": 1,
    "privileged": 1, "needs_reset": 0,
}  # fmt: skip


def build() -> Path:
    """The folder that holds the library. It is built once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pulsetrain-test-nvml-{os.getuid()}-{digest}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        new = folder / f"new-{os.getpid()}.so"
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(new), str(SOURCE), "-lm"], check=True)
        new.rename(library)
    return folder


class TestDriver:
    """GPUs of one machine: healthy H100s that a test makes sick. `environ` lets a process see them."""

    __test__ = False

    def __init__(self, file: Path, gpus: int = 1, prefix: str = "0") -> None:
        self.file = file
        # an image of its own: each copy of the library holds one driver
        self.library = file.with_name(f"{file.name}.libnvidia-ml.so.1")
        self.library.write_bytes((build() / "libnvidia-ml.so.1").read_bytes())
        self.environ = {"LD_LIBRARY_PATH": str(build()), STATE: str(file)}
        self._c = ctypes.CDLL(str(self.library))
        self._c.test_set.argtypes = [ctypes.c_uint, ctypes.c_char_p, ctypes.c_double]
        self._c.test_raise.argtypes = [ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64]
        assert self._c.test_open(str(file).encode(), gpus) == 0
        for gpu in range(gpus):
            self.set(gpu, **HEALTHY)
            self.name(gpu, uuid=f"GPU-{prefix}{gpu}", serial=f"16502300{gpu}", model="NVIDIA H100 80GB HBM3")
            self.name(gpu, pci=f"00000000:{0x18 + gpu:02X}:00.0", fabric="0123456789abcdef" * 2)

    def set(self, gpu: int, **values: float) -> None:
        """Change values of a GPU. None: the card does not support it any more."""
        for name, value in values.items():
            number = math.nan if value is None else float(value)
            assert self._c.test_set(gpu, name.encode(), number) == 0, name

    def name(self, gpu: int, **texts: str) -> None:
        """Change UUID, serial, model, PCI address or fabric cluster of a GPU."""
        for what, text in texts.items():
            assert self._c.test_name(gpu, what.encode(), text.encode()) == 0, what

    def raise_event(self, gpu: int, data: int, kind: int = XID) -> None:
        """An event of a GPU: an Xid by default. It wakes whoever waits for it."""
        self._c.test_raise(gpu, kind, data)

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus. Every later call answers NVML_ERROR_GPU_IS_LOST."""
        self.set(gpu, lost=1)

    def unload(self) -> None:
        """The kernel's driver is gone for processes that start from now on."""
        self._c.test_driver(0)

    def bind(self, monkeypatch):
        """The real binding in this process, calling this driver. It is undone with the test."""
        import pynvml

        monkeypatch.setenv(STATE, str(self.file))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(self.library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return pynvml
