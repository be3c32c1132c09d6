"""What the barrier costs while nobody asks: real steps with all that ranks do for it, and without, in turn.

A rank looks at one word at the end of a step and before a backward pass, and counts its sends and receives
for each peer. The code without that is the same source less these statements. Both run in the same minutes: a
step of a small transformer with the automatic instrumentation, and sends to another process and back, as a
pipeline's stage has them.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from overhead import Hooks, Job, interval, median_ns

from pulsetrain.collectors.layout import W_HOLD
from pulsetrain.collectors.rank import handle as handle_module
from pulsetrain.collectors.rank import operations
from pulsetrain.collectors.rank.auto import loop
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring

MICROBATCHES = 2
"""messages that a step sends, and as many that it receives"""
END = -1.0
ECHO = """
import sys, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=1, world_size=2)
message = torch.zeros(int(sys.argv[2]))
while True:
    dist.recv(message, 0)
    if message[0].item() == float(sys.argv[3]):
        break
    dist.send(message, 0)
dist.destroy_process_group()
"""
NUMBERS = 4 * 64 * 64
"""in a message: the activations of a microbatch"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A statement that only the barrier needs: the first of `method` whose source begins with `begins`."""

    owner: type
    method: str
    module: ModuleType
    begins: str


PARTS = (
    Part(owner=Handle, method="end_step", module=handle_module, begins="if words[W_HOLD]:"),
    Part(
        owner=loop.TrainingLoop,
        method="begin_backward",
        module=loop,
        begins="self._handle.hold_at_backward()",
    ),
    Part(owner=operations.Group, method="_transfer", module=operations, begins="self._show_count("),
)


def without(part: Part) -> Callable[..., Any]:
    """The method as it is without the barrier: the same source, less that statement."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(part.owner, part.method))))
    if not any(_cut(body, part.begins) for body in _bodies(tree)):
        raise LookupError(f"{part.owner.__name__}.{part.method} has no statement {part.begins!r}")
    names: dict[str, Callable[..., Any]] = {}
    exec(compile(tree, f"<{part.method} without the barrier>", "exec"), vars(part.module), names)
    return names[part.method]


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    return (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))  # type: ignore[attr-defined]


def _cut(body: list[ast.stmt], begins: str) -> bool:
    for at, statement in enumerate(body):
        if ast.unparse(statement).startswith(begins):
            del body[at]
            return True
    return False


@contextlib.contextmanager
def switched() -> Iterator[Callable[[bool], None]]:
    """What puts the barrier's code in or takes it out. It is in again at the end."""
    plain = [(part, without(part)) for part in PARTS]
    as_it_is = [(part, getattr(part.owner, part.method)) for part in PARTS]

    def switch(put_in: bool) -> None:
        for part, method in as_it_is if put_in else plain:
            setattr(part.owner, part.method, method)

    try:
        yield switch
    finally:
        switch(True)


@contextlib.contextmanager
def exchanges(handle: Handle) -> Iterator[Callable[[], None]]:
    """Sends messages to another process and gets them back, with the hooks of a rank on its group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    echo = subprocess.Popen([sys.executable, "-c", ECHO, address, str(NUMBERS), str(END)])
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=2)
    assert handle.state is not None
    tracker, group = Tracker(handle.state), dist.group.WORLD
    assert group is not None
    tracker.attach(group, "world", lambda: (0, 1))
    message = torch.ones(NUMBERS)
    wait: Callable[[Any], bool] = tracker.watched_wait(dist.Work.wait)

    def exchange() -> None:
        for _ in range(MICROBATCHES):
            wait(dist.isend(message, 1))
            wait(dist.irecv(message, 1))

    try:
        yield exchange
        dist.send(torch.full((NUMBERS,), END), 1)
        echo.wait(timeout=30)
    finally:
        echo.kill()
        echo.wait()
        tracker.detach([group])
        dist.destroy_process_group()


def measure(*, quick: bool) -> dict[str, float]:
    """Interleaved steps with and without the barrier's code."""
    torch.set_num_threads(1)
    handle = Handle(RingWriter(create_ring()))
    hooks, job, pairs = Hooks(handle), Job("cpu", dim=64, batch=4), 150 if quick else 4000
    with exchanges(handle) as exchange, switched() as switch:
        hooks.put(into=True)

        def timed(*, looks: bool) -> float:
            switch(looks)
            began = time.perf_counter()
            job.loss().backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
            exchange()
            return time.perf_counter() - began

        try:
            for looks in (True, False) * 4:  # the instrumentation observes the first steps
                timed(looks=looks)
            samples = []
            for number in range(pairs):
                first = timed(looks=bool(number % 2))
                second = timed(looks=not number % 2)
                samples.append((second, first) if number % 2 else (first, second))
        finally:
            hooks.put(into=False)
    assert handle.state is not None
    words = handle.state.words
    ratio, low, high = interval(samples, draws=1000)
    return {
        "barrier_ratio": round(ratio, 5),
        "barrier_ratio_low": round(low, 5),
        "barrier_ratio_high": round(high, 5),
        "barrier_look_ns": round(median_ns(lambda: words[W_HOLD]), 1),
        "barrier_step_ms": round(sorted(plain for plain, _ in samples)[pairs // 2] * 1e3, 3),
    }
