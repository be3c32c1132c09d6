"""What a machine's samples and events say of its health, kept for the heartbeat.

The hub decides what a sign means and what is done about it. Here it is only seen: a counter rose, a lane
of the bus is gone, the driver said Xid. Signs are states, not messages: a lost heartbeat loses nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pulsetrain.collectors.machine.gpu_owners import GpuOwners
from pulsetrain.collectors.machine.nvlinks import link_of, metric_of_link
from pulsetrain.protocol.messages import HardwareSign
from pulsetrain.records.columns import Columns

KEPT_NS = 3600 * 10**9  # how long something that happened is told
LINK_KEPT_NS = 600 * 10**9  # the same of a link that was lost: it may have been the switch, long ago
COUNTED_NS = 24 * KEPT_NS  # how long it counts where the same happens again
CLEARED_NS = 5 * 10**9  # a state that is absent for so long has ended
APART_NS = 5 * 10**9  # what comes sooner after the last one belongs to the same burst
GAP_NS = 10 * 10**9  # after so long without a sample nothing is known of what a port did: the machine slept
MOST_TIMES = 16
MOST_SIGNS = 64
SAMPLES = 5
LASTING, GOING_ON = 4, 2  # of these must show that a GPU or its bus is slow, before that is a state, and
# while it is one. It is so for a moment whenever the clock changes (DCGM on the reason 0x8)
RATE_NS = 5 * 10**9  # corrected errors are counted over so long
BUSY_RATIO = 0.5  # an idle GPU slows its bus down and narrows it on purpose (manual of nvidia-smi)
SILENT_S = 20.0

# bits of nvml.h: nvmlClocksEventReason*
_REASONS = {
    "throttle_hardware": 0x08,
    "throttle_software_thermal": 0x20,
    "throttle_hardware_thermal": 0x40,
    "throttle_power_brake": 0x80,
}
_FLAGS = {
    "gpu_lost": "gpu_lost",
    "gpu_remapped_rows_pending": "rows_pending",
    "gpu_remapped_rows_failed": "rows_failed",
}
# nvmlDeviceGpuRecoveryAction_t of nvml.h. Headers differ on what 5 means, so that and above is no sign
_RECOVERY = {
    1.0: "recovery_reset",
    2.0: "recovery_reboot",
    3.0: "recovery_drain",
    4.0: "recovery_drain_and_reset",
}
_COUNTERS = {
    "gpu_ecc_uncorrected_total": "ecc_uncorrected",
    "gpu_nvlink_crc_flit_errors_total": "nvlink_errors",
    "gpu_nvlink_crc_data_errors_total": "nvlink_errors",
    "gpu_nvlink_replays_total": "nvlink_errors",
    "gpu_nvlink_recoveries_total": "nvlink_recoveries",
    "gpu_nvlink5_malformed_packets_total": "nvlink_errors",
    "gpu_nvlink5_receive_errors_total": "nvlink_errors",
    "gpu_nvlink5_integrity_errors_total": "nvlink_errors",
    "gpu_nvlink5_recoveries_total": "nvlink_recoveries",
    "rdma_link_downed_total": "port_down",
    "nic_link_downed_total": "port_down",
}
# of single NVLinks: they do not count once more, they say which link it was
_OF_LINKS = {metric_of_link(name): kind for name, kind in _COUNTERS.items() if kind.startswith("nvlink_")}
MOST_LINKS_NAMED = 4
_BY_COUNT = ("ecc_uncorrected",)  # each is an error of its own. Of all else a burst is one event
_BY_SAMPLE = ("nvlink_errors",)  # one burst may be many errors, so samples count and not errors
UNUSED = "unused_port_down"
_LINKS = {"port_down", UNUSED, "nic_link_down", "ethernet_link_down", "bond_link_down"}
_UP = {"nic_port_state": 1.0, "rdma_port_state": 4.0}
_GPU = ("gpu_clock_event_reasons", "gpu_pcie_width", "gpu_pcie_width_max", "gpu_pcie_generation")
_READ = {
    *_FLAGS,
    *_COUNTERS,
    *_GPU,
    *_UP,
    "gpu_pcie_generation_max",
    "gpu_utilization_ratio",
    "gpu_ecc_corrected_total",
    "gpu_recovery_action",
    *_OF_LINKS,
}


@dataclass
class _Sign:
    """One sign of one device. `held`: it is a state, which ends where it is not seen again.

    `told` is how often the driver and how often the kernel's log told of it. `grave`: its text is of a line
    that says that it was fatal.
    """

    kind: str
    device: str
    code: int
    first_ns: int
    last_ns: int
    held: bool
    value: float = 0.0
    count: int = 0
    text: str = ""
    grave: bool = False
    shared: bool = False
    times_ns: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))
    told: Counter[str] = field(default_factory=Counter)

    def is_told_again(self, text: str) -> bool:
        """Whether the other one of driver and kernel's log, which alone has words, told of this already.

        Both tell of each Xid. Times do not say which belong together: the kernel's clock drifts.
        """
        mine, other = ("log", "driver") if text else ("driver", "log")
        self.told[mine] += 1
        return self.told[mine] <= self.told[other]

    def row(self) -> HardwareSign:
        return HardwareSign(
            kind=self.kind,
            device=self.device,
            code=self.code,
            value=self.value,
            first_ns=self.first_ns,
            last_ns=self.last_ns,
            count=self.count,
            times_ns=tuple(self.times_ns),
            text=self.text,
            shared=self.shared,
        )


_Shown = tuple[int, Collection[str]]
"""The time of a sample, and the states that it showed"""


@dataclass
class _Device:
    """What is remembered of one device between samples."""

    counters: dict[str, float] = field(default_factory=dict)
    links: dict[str, Counter[str]] = field(default_factory=dict)
    """how much each NVLink of a GPU counted since a sign began, by sign"""
    widest: float = 0.0
    corrected: tuple[int, float] | None = None
    was_up: bool = False
    seen_ns: int = 0
    clocks: deque[_Shown] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    bus: deque[_Shown] = field(default_factory=lambda: deque(maxlen=SAMPLES))


class SignTracker:
    """The signs of one machine. Any thread may call it.

    Nothing is told of GPUs of other jobs. `owners` says whose they are. `unused` are ports that the job
    leaves alone. That they went down is a sign of its own, which asks for nothing.
    """

    def __init__(
        self,
        owners: GpuOwners | None = None,
        *,
        unused: Collection[str] = (),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owners = owners or GpuOwners()
        self._unused, self._clock_s = frozenset(unused), clock_s
        self._gpus_seen_s = 0.0
        self._lock = threading.Lock()
        self._signs: dict[tuple[str, str, int], _Sign] = {}
        self._earlier: dict[tuple[str, str, int], tuple[int, ...]] = {}
        self._devices: dict[str, _Device] = {}
        self._gpus_seen_ns = 0
        self._read_s: float | None = None
        self._apart_s = 0.0  # between the last two reads

    def happened(
        self,
        kind: str,
        device: str,
        now_ns: int,
        *,
        code: int = 0,
        count: int = 1,
        text: str = "",
        grave: bool = False,
        shared: bool = False,
    ) -> None:
        """Something happened `count` times. What driver and kernel's log both tell counts once.

        `grave`: the text says that it was fatal. One that does not say so does not replace that text.
        `shared`: it may be of a GPU that another job uses.
        """
        with self._lock:
            self._happened(kind, device, now_ns, code, count, text, grave=grave, shared=shared)

    def _happened(
        self,
        kind: str,
        device: str,
        now_ns: int,
        code: int,
        count: int,
        text: str,
        *,
        grave: bool = False,
        shared: bool = False,
    ) -> None:
        if self.owners.is_foreign(kind, device):
            return
        key = (kind, device, code)
        sign = self._signs.get(key)
        if sign is None:
            sign = self._signs[key] = _Sign(kind, device, code, now_ns, now_ns, held=False)
            sign.shared = shared or self.owners.is_doubtful(kind, device)
            self._go_on(sign, [t for t in self._earlier.pop(key, ()) if now_ns - t <= COUNTED_NS])
        if text and (grave or not sign.grave):
            sign.text, sign.grave = text, grave
        if code and sign.is_told_again(text):
            return
        sign.count += count
        sign.last_ns = max(sign.last_ns, now_ns)
        apart_ns = 1 if kind in _BY_SAMPLE else APART_NS
        if kind in _BY_COUNT:
            sign.times_ns.extend([now_ns] * min(count, MOST_TIMES))
        elif not sign.times_ns or now_ns - sign.times_ns[-1] >= apart_ns:
            sign.times_ns.append(now_ns)

    def _go_on(self, sign: _Sign, earlier_ns: Sequence[int]) -> None:
        """Count what happened in the last day as well."""
        sign.times_ns.extend(earlier_ns)
        if sign.kind not in _BY_SAMPLE:
            sign.count = len(earlier_ns)

    def set_owners(self, owners: GpuOwners) -> None:
        """It is known only now whose the GPUs are."""
        with self._lock:
            self.owners = owners
            for key, sign in list(self._signs.items()):
                if owners.is_foreign(sign.kind, sign.device):
                    del self._signs[key]
                elif sign.kind == "xid" and sign.device:
                    sign.shared = owners.is_doubtful(sign.kind, sign.device)

    def gpus_answered(self) -> None:
        """The driver answers, and no GPU is sampled yet: it is not silent."""
        with self._lock:
            self._gpus_seen_ns = 0

    def gpus_silent(self, now_ns: int, for_s: float) -> None:
        """The driver has not answered for so long. That is a sign until a sample comes."""
        with self._lock:
            self._gpus_seen_ns, self._gpus_seen_s = now_ns, self._clock_s() - max(for_s, SILENT_S)

    def observe(self, samples: Columns) -> None:
        """Look at rows of `metrics`: one sample of each value, all of the same time."""
        by_device: dict[str, dict[str, float]] = {}
        now_ns = 0
        for row in samples.to_rows():
            name = str(row["name"])
            now_ns = int(str(row["ts"]))
            if name in _READ:
                by_device.setdefault(str(row["device"]), {})[name] = float(str(row["value"]))
        with self._lock:
            for device, values in by_device.items():
                gpu, link = link_of(device)
                if gpu in self.owners.foreign:
                    continue
                if link:
                    self._look_at_link(gpu, link, values)
                else:
                    self._look(device, values, now_ns)

    def _look(self, device: str, values: Mapping[str, float], now_ns: int) -> None:
        memory = self._devices.setdefault(device, _Device())
        if "gpu_lost" in values:
            self._gpus_seen_ns, self._gpus_seen_s = now_ns, self._clock_s()
        for name, kind in _FLAGS.items():
            if values.get(name, 0.0) > 0:
                self._hold(kind, device, now_ns, values[name])
        action = values.get("gpu_recovery_action", 0.0)
        if action in _RECOVERY:
            self._hold(_RECOVERY[action], device, now_ns, action)
        states = {name: values[name] for name in _UP if name in values}
        memory.was_up |= not states or any(state == _UP[name] for name, state in states.items())
        for name, kind in _COUNTERS.items():
            if name in values:
                before = memory.counters.get(name, values[name])
                memory.counters[name] = values[name]
                if kind == "port_down" and memory.seen_ns and now_ns - memory.seen_ns > GAP_NS:
                    continue
                rose = int(values[name] - before)  # below 0: the driver was loaded anew
                if rose > 0 and memory.was_up:  # a port that nothing uses may try again and again
                    told = UNUSED if kind == "port_down" and device in self._unused else kind
                    self._happened(told, device, now_ns, 0, rose, "")
        if now_ns - memory.seen_ns > GAP_NS:  # a state of before says nothing of the time between
            memory.clocks.clear()
            memory.bus.clear()
        memory.seen_ns = now_ns
        if "gpu_clock_event_reasons" in values:
            reasons = int(values["gpu_clock_event_reasons"])
            slowed = {kind: 1.0 for kind, bit in _REASONS.items() if reasons & bit}
            self._vote(memory.clocks, device, now_ns, slowed)
        self._look_at_bus(memory, device, values, now_ns)
        self._look_at_memory(memory, device, values, now_ns)

    def _look_at_link(self, gpu: str, link: str, values: Mapping[str, float]) -> None:
        """Note which link it was that the sign of its GPU tells of. It comes after the GPU's own counters."""
        memory = self._devices.setdefault(gpu, _Device())
        for name, kind in _OF_LINKS.items():
            if name not in values:
                continue
            key = f"{link} {name}"
            rose = values[name] - memory.counters.get(key, values[name])
            memory.counters[key] = values[name]
            sign = self._signs.get((kind, gpu, 0))
            if rose > 0 and sign is not None:
                counted = memory.links.setdefault(kind, Counter()) if sign.text else Counter[str]()
                counted[link] += int(rose)
                memory.links[kind] = counted
                worst = [number for number, _ in counted.most_common(MOST_LINKS_NAMED)]
                sign.text = ", ".join(sorted(worst, key=int))

    def _vote(self, shown: deque[_Shown], device: str, now_ns: int, states: Mapping[str, float]) -> None:
        """Take in the states of a sample. Most of the last ones must show one before it counts."""
        shown.append((now_ns, states.keys()))
        for kind, value in states.items():
            seen_ns = [at_ns for at_ns, kinds in shown if kind in kinds]
            sign = self._signs.get((kind, device, 0))
            going_on = sign is not None and now_ns - sign.last_ns <= CLEARED_NS
            if len(seen_ns) >= (GOING_ON if going_on else LASTING):
                self._hold(kind, device, now_ns, value, since_ns=seen_ns[0])

    def _look_at_bus(self, memory: _Device, device: str, values: Mapping[str, float], now_ns: int) -> None:
        """Only busy samples count. One of them may be read just as the bus wakes."""
        width, best = values.get("gpu_pcie_width", 0.0), values.get("gpu_pcie_width_max", 0.0)
        memory.widest = max(memory.widest, width)
        speed, fastest = values.get("gpu_pcie_generation", 0.0), values.get("gpu_pcie_generation_max", 0.0)
        if values.get("gpu_utilization_ratio", 0.0) <= BUSY_RATIO:
            return
        states: dict[str, float] = {}
        if 0 < width < memory.widest:
            states["pcie_width_drop"] = width
        elif 0 < width < best:
            states["pcie_width_low"] = width
        if 0 < speed < fastest:
            states["pcie_speed_drop"] = speed
        if memory.bus and now_ns - memory.bus[-1][0] > CLEARED_NS:
            memory.bus.clear()
        self._vote(memory.bus, device, now_ns, states)

    def _look_at_memory(self, memory: _Device, device: str, values: Mapping[str, float], now_ns: int) -> None:
        """Corrected errors a second, over some seconds: every memory corrects one now and then."""
        total = values.get("gpu_ecc_corrected_total")
        if total is None:
            return
        since_ns, before = memory.corrected or (now_ns, total)
        if memory.corrected is None or total < before:
            memory.corrected = (now_ns, total)
        elif now_ns - since_ns >= RATE_NS:
            memory.corrected = (now_ns, total)
            if total > before:
                rate = (total - before) / (now_ns - since_ns) * 1e9
                self._hold("ecc_corrected", device, now_ns, rate, count=int(total - before))

    def _hold(
        self, kind: str, device: str, now_ns: int, value: float, *, count: int = 0, since_ns: int = 0
    ) -> None:
        """A state is there. One that was absent for a while begins anew, `since_ns` if that is given."""
        key = (kind, device, 0)
        sign = self._signs.get(key)
        if sign is None or now_ns - sign.last_ns > _kept_ns(sign):
            sign = self._signs[key] = _Sign(kind, device, 0, since_ns or now_ns, now_ns, held=True)
            sign.shared = self.owners.is_doubtful(kind, device)
        sign.last_ns, sign.value = now_ns, value
        sign.count += count

    def read(self, now_ns: int) -> tuple[HardwareSign, ...]:
        """All signs as of now, the newest first where there are very many.

        A GPU that is lost stays lost. A sampler that a driver holds is a sign too, and ends no state.
        """
        with self._lock:
            self._notice_pause()
            silent = self._silent()
            for key, sign in list(self._signs.items()):
                if not (silent and sign.held) and now_ns - sign.last_ns > _kept_ns(sign):
                    del self._signs[key]
                    self._earlier[key] = tuple(sign.times_ns)
            self._forget(now_ns)
            signs = sorted(self._signs.values(), key=lambda s: -s.last_ns)[:MOST_SIGNS]
            rows = [sign.row() for sign in signs]
            return (*rows, self._silence(now_ns)) if silent else tuple(rows)

    def _forget(self, now_ns: int) -> None:
        """Drop what happened so long ago that it does not count any more."""
        for key, times_ns in list(self._earlier.items()):
            recent = tuple(t for t in times_ns if now_ns - t <= COUNTED_NS)
            if recent:
                self._earlier[key] = recent
            else:
                del self._earlier[key]

    def _notice_pause(self) -> None:
        """Signs that were not read for long: the sampler was paused too, and the driver was not asked."""
        now_s = self._clock_s()
        apart_s = 0.0 if self._read_s is None else now_s - self._read_s
        if apart_s > max(SILENT_S, 2 * self._apart_s):
            self._gpus_seen_s = now_s
        self._read_s, self._apart_s = now_s, apart_s

    def _silent(self) -> bool:
        seen = bool(self._gpus_seen_ns) and not self.owners.none
        return seen and self._clock_s() - self._gpus_seen_s > SILENT_S

    def _silence(self, now_ns: int) -> HardwareSign:
        silent_s = self._clock_s() - self._gpus_seen_s
        return HardwareSign(
            kind="gpu_silent", first_ns=now_ns - int(silent_s * 1e9), last_ns=now_ns, value=silent_s
        )


def _kept_ns(sign: _Sign) -> float:
    """How long a sign is told after it was seen last."""
    if sign.kind == "gpu_lost":
        return math.inf
    if sign.kind == "ecc_corrected":
        return 2 * RATE_NS + CLEARED_NS
    if sign.held:
        return CLEARED_NS
    return LINK_KEPT_NS if sign.kind in _LINKS else KEPT_NS
