"""Faults that a training process does to itself: a script offers places, the plan says what happens there.

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
from typing import Any, TypeVar

from pulsetrain.faults.plan import VALUES, WORK, Fault, load

T = TypeVar("T")

CUDA_TEXT = (
    "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call."
)


class InjectedError(RuntimeError):
    """What the fault `exception` raises."""


class Injector:
    """The faults of one rank of one attempt. Each strikes once in each of its steps."""

    def __init__(self, faults: tuple[Fault, ...], *, rank: int, attempt: int) -> None:
        self._faults = tuple(f for f in faults if f.rank == rank and f.attempt in (-1, attempt))
        self._rank, self._attempt = rank, attempt
        self._struck: set[tuple[int, int]] = set()
        self._links = _Links()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Injector:
        """The faults in `PULSETRAIN_FAULTS` for the rank and attempt that torchrun's variables name."""
        return cls(
            load(environ),
            rank=int(environ.get("RANK", "0")),
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )

    def at(self, step: int, phase: str = "") -> None:
        """Do what is planned for this place; may not return, may raise `InjectedError`."""
        self._links.restore(step)
        for fault in self._due(step, phase):
            if fault.kind == "slow_link":
                self._links.delay(fault)
            elif fault.kind == "slow_group":
                self._links.delay_group(fault)
            else:
                _ACTIONS[fault.kind](fault)

    def stretch(self, step: int) -> float:
        """How many times longer this rank's work takes in this step; 1.0 where nothing is planned."""
        factor = 1.0
        for fault in self._faults:
            if fault.kind in WORK and fault.strikes(rank=self._rank, step=step, attempt=self._attempt):
                factor *= fault.factor if fault.kind == "slow" else _length(fault, step)
        return factor

    def value(self, step: int, value: T, phase: str = "") -> T:
        """`value` (a float, or a tensor that is changed in place), damaged where that is planned."""
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


def damage(fault: Fault, value: Any) -> Any:
    """`value` as the fault leaves it: a float anew, a tensor's first element in place."""
    if not hasattr(value, "view"):
        return _damaged(fault, float(value))
    first = value.detach().view(-1)[:1]
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
    """`value` in float32 with one high bit of its exponent turned: silent, finite, and huge or tiny.

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
    """Sleep in C without letting go of the interpreter, as a library does that forgot to."""
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
    """Ask for memory beyond a limit of the process, as beyond a cgroup's: Python's own MemoryError."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115 - read at once
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


def _signal_child(number: int) -> Callable[[Fault], None]:
    """Signal this process's youngest child: a data loader's worker, killed or stuck."""

    def send(_: Fault) -> None:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if children:
            os.kill(children[-1], number)

    return send


def _desync(_: Fault) -> None:
    """Take part in one collective more than the others."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    dist.all_reduce(torch.zeros(7, device=device))


def _gc_pause(fault: Fault) -> None:
    """Collections of a heap grown by cycles, for `seconds`."""
    knots: list[Any] = []
    for _ in range(200_000):
        knot: list[Any] = []
        knot.append(knot)
        knots.append(knot)
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


class _Links:
    """Delays before every send of this rank, or in every operation of one of its process groups, until the
    last step of the fault is over."""

    NAMES = ("send", "isend", "batch_isend_irecv")
    HOOK_ID = 0x534C4F57  # any number that no other user of the hooks takes

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}
        self._until = -1
        self._groups: dict[str, tuple[Any, int]] = {}

    def delay_group(self, fault: Fault) -> None:
        """Every operation of the group described by `text` takes `seconds` longer: its members are planned
        alike, as both ends of a slow link see it. It delays after the operation was announced."""
        from torch.distributed import distributed_c10d as c10d

        if fault.text in self._groups:
            return
        for group in c10d._world.pg_map:
            if group.group_desc == fault.text:
                group.register_pre_hook(self.HOOK_ID, lambda _: time.sleep(fault.seconds))
                self._groups[fault.text] = (group, fault.last_step)

    def delay(self, fault: Fault) -> None:
        import torch.distributed as dist

        self._until = fault.last_step
        if self._originals:
            return
        for name in self.NAMES:
            self._originals[name] = original = getattr(dist, name)
            setattr(dist, name, _late(original, fault.seconds))

    def restore(self, step: int) -> None:
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


def _late(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return late
