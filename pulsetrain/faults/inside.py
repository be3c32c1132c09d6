"""Faults that a training process injects into itself. The script names points, the plan what happens there.

faults = Injector.from_environ()
for step in range(steps):
    faults.at(step, "forward")
    work(seconds * faults.stretch(step))
    loss = faults.value(step, loss)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

from pulsetrain.faults.plan import VALUES, WORK, Fault, load

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
P = ParamSpec("P")

CUDA_TEXT = (
    "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call."
)


class InjectedError(RuntimeError):
    """The error that the fault `exception` raises."""


class HookedGroup(Protocol):
    """A process group of torch that calls hooks before each operation."""

    @property
    def group_desc(self) -> str: ...
    def register_pre_hook(self, hook_id: int, hook: Callable[[object], None]) -> None: ...
    def unregister_pre_hook(self, hook_id: int) -> None: ...


class Injector:
    """The faults of one rank of one attempt. Each strikes once in each of its steps."""

    def __init__(self, faults: tuple[Fault, ...], *, rank: int, attempt: int) -> None:
        self._faults = tuple(f for f in faults if f.rank == rank and f.attempt in (-1, attempt))
        self._rank, self._attempt = rank, attempt
        self._struck: set[tuple[int, int]] = set()
        self._links = SlowLinks()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Injector:
        """The faults in `PULSETRAIN_FAULTS` for the rank and attempt that torchrun's variables name."""
        return cls(
            load(environ),
            rank=int(environ.get("RANK", "0")),
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    def at(self, step: int, phase: str = "") -> None:
        """Inject what is planned for this point. It may not return, and may raise `InjectedError`."""
        self._links.restore(step)
        for fault in self._due(step, phase):
            if fault.kind == "slow_link":
                self._links.delay(fault)
            elif fault.kind == "slow_group":
                self._links.delay_group(fault)
            else:
                _ACTIONS[fault.kind](fault)

    def stretch(self, step: int) -> float:
        """How many times longer this rank's work takes in this step. 1.0 where nothing is planned."""
        factor = 1.0
        for fault in self._faults:
            if fault.kind in WORK and fault.strikes(rank=self._rank, step=step, attempt=self._attempt):
                factor *= fault.factor if fault.kind == "slow" else _length(fault, step)
        return factor

    def value(self, step: int, value: T, phase: str = "") -> T:
        """`value` as the planned faults leave it. A tensor is changed in place."""
        for fault in self._due(step, phase, VALUES):
            value = damage(fault, value)
        return value

    def _due(self, step: int, phase: str, kinds: tuple[str, ...] | None = None) -> list[Fault]:
        due = []
        for number, fault in enumerate(self._faults):
            wanted = (fault.kind in VALUES) == (kinds is VALUES) and fault.phase in ("", phase)
            wanted = wanted and fault.kind not in WORK
            strikes = fault.strikes(rank=self._rank, step=step, attempt=self._attempt)
            if wanted and strikes and (number, step) not in self._struck:
                self._struck.add((number, step))
                due.append(fault)
        return due


def _length(fault: Fault, step: int) -> float:
    """The draw of `uneven` for a step: log-normal around 1, the same for all ranks of one `code`."""
    return math.exp(random.Random(f"{fault.code}/{step}").gauss(0.0, fault.factor))


def damage(fault: Fault, value: T) -> T:
    """`value` as the fault leaves it: a new float, or the same tensor with its first element changed."""
    if not hasattr(value, "view"):
        return cast("T", _damaged(fault, float(cast("float", value))))
    first = cast("torch.Tensor", value).detach().view(-1)[:1]
    first.fill_(_damaged(fault, float(first)))
    return value


def _damaged(fault: Fault, value: float) -> float:
    match fault.kind:
        case "nan":
            return float("nan")
        case "inf":
            return float("inf")
        case "loss_spike":
            return value * fault.factor
        case _:
            return flip_exponent_bit(value)


def flip_exponent_bit(value: float) -> float:
    """`value` in float32 with one high bit of its exponent flipped: finite, and huge or tiny.

    >>> flip_exponent_bit(1.0)
    5.421010862427522e-20
    """
    bits = ctypes.c_uint32.from_buffer(ctypes.c_float(value))
    bits.value ^= 1 << 29
    return ctypes.c_float.from_buffer(bits).value


def _raise(fault: Fault) -> None:
    raise InjectedError(fault.text or f"injected at step {fault.step}")


def _cuda_error(fault: Fault) -> None:
    print(fault.text or CUDA_TEXT, file=sys.stderr, flush=True)  # noqa: T201 - what a real one leaves behind
    os._exit(1)


def _busy(fault: Fault) -> None:
    end = time.perf_counter() + fault.seconds
    while time.perf_counter() < end:
        sum(range(1000))


def _hold_gil(fault: Fault) -> None:
    """Sleep in C without releasing the interpreter lock, like a faulty library."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(round(fault.seconds * 1e6)))


def _segfault(_: Fault) -> None:
    ctypes.string_at(0)


def _signal(number: int) -> Callable[[Fault], None]:
    def send(_: Fault) -> None:
        os.kill(os.getpid(), number)

    return send


def _hang(_: Fault) -> None:
    while True:
        time.sleep(3600)


def _out_of_memory(_: Fault) -> None:
    """Allocate memory beyond a limit of the process, so that Python raises its own MemoryError."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115 - read at once
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    allocated = []
    while True:
        allocated.append(bytearray(16 << 20))


def _signal_child(number: int) -> Callable[[Fault], None]:
    """Signal this process's youngest child, for instance a worker of a data loader."""

    def send(_: Fault) -> None:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if children:
            os.kill(children[-1], number)

    return send


def _desync(_: Fault) -> None:
    """Join one collective more than the other ranks."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    dist.all_reduce(torch.zeros(7, device=device))


def _gc_pause(fault: Fault) -> None:
    """Run the garbage collector over a large heap of cycles, for `seconds`."""
    cycles: list[object] = []
    for _ in range(200_000):
        cycle: list[object] = []
        cycle.append(cycle)
        cycles.append(cycle)
    end = time.perf_counter() + fault.seconds
    while True:
        gc.collect()
        if time.perf_counter() >= end:
            break


def _file_limit(fault: Fault) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (fault.size_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


_ACTIONS: Mapping[str, Callable[[Fault], None]] = {
    "exception": _raise,
    "cuda_error": _cuda_error,
    "exit": lambda fault: os._exit(fault.code),
    "abort": lambda _: os.abort(),
    "segfault": _segfault,
    "sigkill": _signal(signal.SIGKILL),
    "sigterm": _signal(signal.SIGTERM),
    "sigstop": _signal(signal.SIGSTOP),
    "hang": _hang,
    "out_of_memory": _out_of_memory,
    "kill_child": _signal_child(signal.SIGKILL),
    "stop_child": _signal_child(signal.SIGSTOP),
    "desync": _desync,
    "gc_pause": _gc_pause,
    "sleep": lambda fault: time.sleep(fault.seconds),
    "busy": _busy,
    "hold_gil": _hold_gil,
    "file_limit": _file_limit,
}


class SlowLinks:
    """Delays every send of this rank, or every operation of one of its process groups.

    The delay ends after the last step of the fault.
    """

    NAMES = ("send", "isend", "batch_isend_irecv")
    HOOK_ID = 0x534C4F57  # any number that no other user of the hooks takes

    def __init__(self) -> None:
        self._originals: dict[str, Callable[..., object]] = {}
        self._until = -1
        self._groups: dict[str, tuple[HookedGroup, int]] = {}

    def delay_group(self, fault: Fault) -> None:
        """Every operation of the group that `text` describes takes `seconds` longer.

        Plan the same fault for all its members: both ends of a slow link see it. The delay comes after the
        operation was announced.
        """
        from torch.distributed import distributed_c10d as c10d

        if fault.text in self._groups:
            return
        for group in c10d._world.pg_map:
            if group.group_desc == fault.text:
                group.register_pre_hook(self.HOOK_ID, lambda _: time.sleep(fault.seconds))
                self._groups[fault.text] = (group, fault.last_step)

    def delay(self, fault: Fault) -> None:
        """Every send takes `seconds` longer."""
        import torch.distributed as dist

        self._until = fault.last_step
        if self._originals:
            return
        for name in self.NAMES:
            self._originals[name] = original = getattr(dist, name)
            setattr(dist, name, _delayed(original, fault.seconds))

    def restore(self, step: int) -> None:
        """End the delays whose last step is over."""
        for text, (group, until) in list(self._groups.items()):
            if step > until:
                group.unregister_pre_hook(self.HOOK_ID)
                del self._groups[text]
        if self._originals and step > self._until:
            import torch.distributed as dist

            for name, original in self._originals.items():
                with contextlib.suppress(AttributeError):
                    setattr(dist, name, original)
            self._originals = {}


def _delayed(call: Callable[P, T], seconds: float) -> Callable[P, T]:
    def delayed(*args: P.args, **kwargs: P.kwargs) -> T:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return delayed
