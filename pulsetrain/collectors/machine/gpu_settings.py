"""Clocks and power limits of GPUs: recorded before a check, and set back after it where they have changed.

A check sets nothing itself. What runs in it may, and a check may be killed, so the process that asked for it
sets back. NVML tells application clocks and the power limit. It has no function that tells locked clocks, so
these are not touched. Only root may set a power limit, and application clocks too unless the driver was told
otherwise (nvmlDeviceGetAPIRestriction). What needs root is tried by root alone. Source: NVML API reference,
device commands.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()

VISIBLE = "CUDA_VISIBLE_DEVICES"
TRIES = 2  # to set back after a check. What fails is tried again with the next one
LIMIT_S = 1.0  # a driver may hang. Then nothing is recorded, and the check goes on

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """What one GPU is set to. Clocks in MHz, power in mW, None where the card does not tell."""

    uuid: str
    memory_clock_mhz: int | None
    graphics_clock_mhz: int | None
    power_limit_mw: int | None


def read(nvml: Any, visible: str | None = None) -> list[GpuSettings]:
    """The settings of the GPUs that `CUDA_VISIBLE_DEVICES` names, of all for None. Raises `NVMLError`."""
    return [_settings(nvml, uuid, handle) for uuid, handle in _devices(nvml, visible)]


def put_back(
    nvml: Any, before: Sequence[GpuSettings], visible: str | None = None, *, root: bool
) -> list[str]:
    """Set what has changed to what it was. One line for each change: what was set, or why it was not."""
    lines: list[str] = []
    handles = dict(_devices(nvml, visible))
    for was in before:
        handle = handles.get(was.uuid)
        if handle is None:
            lines.append(f"{was.uuid}: it does not answer, so its settings are not known")
            continue
        now = _settings(nvml, was.uuid, handle)
        lines += [_one(nvml, change, root=root) for change in _changes(nvml, handle, was, now)]
    return lines


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One setting that has changed. `restricted`: only root may set it."""

    what: str
    set_back: Callable[[], object]
    restricted: bool


def _changes(nvml: Any, handle: Any, was: GpuSettings, now: GpuSettings) -> Iterator[_Change]:
    clocks = (was.memory_clock_mhz, was.graphics_clock_mhz)
    if None not in clocks and clocks != (now.memory_clock_mhz, now.graphics_clock_mhz):
        yield _Change(
            what=f"{was.uuid}: application clocks {now.memory_clock_mhz}/{now.graphics_clock_mhz} MHz, "
            f"before the check {clocks[0]}/{clocks[1]} MHz",
            set_back=lambda: nvml.nvmlDeviceSetApplicationsClocks(handle, *clocks),
            restricted=_clocks_restricted(nvml, handle),
        )
    power = was.power_limit_mw
    if power is not None and power != now.power_limit_mw:
        yield _Change(
            what=f"{was.uuid}: power limit {(now.power_limit_mw or 0) / 1e3:g} W, "
            f"before the check {power / 1e3:g} W",
            set_back=lambda: nvml.nvmlDeviceSetPowerManagementLimit(handle, power),
            restricted=True,
        )


def _one(nvml: Any, change: _Change, *, root: bool) -> str:
    if change.restricted and not root:
        return f"{change.what}: not set back, only root may"
    try:
        change.set_back()
    except nvml.NVMLError as error:
        return f"{change.what}: not set back: {error}"
    return f"{change.what}: set back"


def _clocks_restricted(nvml: Any, handle: Any) -> bool:
    """Whether only root may set application clocks. So it is where the driver does not say."""
    try:
        state = nvml.nvmlDeviceGetAPIRestriction(handle, nvml.NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS)
    except (nvml.NVMLError, AttributeError):
        return True
    return bool(state != nvml.NVML_FEATURE_DISABLED)


def _settings(nvml: Any, uuid: str, handle: Any) -> GpuSettings:
    def clock(kind: int) -> int | None:
        return _known(nvml, lambda: nvml.nvmlDeviceGetApplicationsClock(handle, kind))

    return GpuSettings(
        uuid=uuid,
        memory_clock_mhz=clock(nvml.NVML_CLOCK_MEM),
        graphics_clock_mhz=clock(nvml.NVML_CLOCK_GRAPHICS),
        power_limit_mw=_known(nvml, lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle)),
    )


def _known(nvml: Any, ask: Callable[[], int]) -> int | None:
    """A value, None where the card has none: newer ones have no application clocks."""
    try:
        return int(ask())
    except (nvml.NVMLError, AttributeError):
        return None


def _devices(nvml: Any, visible: str | None) -> list[tuple[str, Any]]:
    """UUID and handle of each GPU that answers and that processes with this list can use."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            if is_visible(index, name, visible):
                found.append((name, handle))
    return found


def is_visible(index: int, uuid: str, visible: str | None) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` names a GPU: by index, or by the beginning of its UUID.

    A name that begins with a minus ends the list. Source: CUDA programming guide, environment variables.

    >>> is_visible(1, "GPU-ab12", None), is_visible(1, "GPU-ab12", "0,GPU-ab"), is_visible(1, "GPU-ab12", "")
    (True, True, False)
    """
    if visible is None:
        return True
    for name in (part.strip() for part in visible.split(",")):
        if name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)):
            return True
        if not name or name.startswith("-"):
            return False
    return False


class SettingsKeeper:
    """Records the settings of the GPUs when the first of several checks begins, and sets them back when the
    last one has ended, however it ended.

    Where there is no driver, or it does not answer in `limit_s`, checks run all the same. A driver that could
    not be started is not asked again. One that fails to set back is. `environ` is that of the checks.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        nvml: Any = None,
        root: bool | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._visible, self._nvml, self._limit_s = environ.get(VISIBLE), nvml, limit_s
        self._root = os.geteuid() == 0 if root is None else root
        self._lock = threading.Lock()
        self._checks = 0
        self._before: list[GpuSettings] = []
        self._asking: threading.Thread | None = None
        self._blind = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What runs in the block leaves the settings as they were."""
        with self._lock:
            self._checks += 1
            if self._checks == 1:
                self._restore()  # what an earlier check left behind
                self._before = self._before or self._ask(self._record) or []
        try:
            yield
        finally:
            with self._lock:
                self._checks -= 1
                if not self._checks:
                    self._restore()

    def _restore(self) -> None:
        """Set back what has changed. Where the driver fails, what was recorded is kept for the next time."""
        for _ in range(TRIES if self._before else 0):
            lines = self._ask(self._set_back)
            if lines is not None:
                self._before = []
                for line in lines:
                    log.warning("gpu_settings", change=line)
                return
        if self._before:
            gpus = [was.uuid for was in self._before]
            log.warning("gpu_settings_not_set_back", gpus=gpus, again="with the next check")

    def _record(self) -> list[GpuSettings]:
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:
            self._blind = True
            raise
        return read(self._nvml, self._visible)

    def _set_back(self) -> list[str]:
        return put_back(self._nvml, self._before, self._visible, root=self._root)

    def _ask(self, ask: Callable[[], list[_T]]) -> list[_T] | None:
        """What the driver says, None where it does not. It may hang, so a thread of its own asks it."""
        if self._blind or (self._asking is not None and self._asking.is_alive()):
            return None
        said: list[list[_T]] = []

        def run() -> None:
            try:
                said.append(ask())
            except Exception as error:  # noqa: BLE001 - no binding, no driver, no GPU: checks run all the same
                log.debug("gpu_settings_unknown", why=f"{type(error).__name__}: {error}")

        self._asking = threading.Thread(target=run, name="gpu settings", daemon=True)
        self._asking.start()
        self._asking.join(self._limit_s)
        if self._asking.is_alive():
            log.warning("gpu_settings_unknown", why=f"the driver does not answer in {self._limit_s:g} s")
        return said[0] if said else None
