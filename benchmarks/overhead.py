"""What watching costs a training process: one phase, one collective, and a whole step.

    python benchmarks/overhead.py [--device cuda] [--blocks 200]

A phase is timed beside `torch.profiler.record_function` in the same run. The step is a real one (forward,
backward, AdamW of a small transformer, phases around each part, a step and a loss), run with and without
Pulsetrain in interleaved blocks of one process, while another process reads the ring as the agent does; the
ratio's interval is a bootstrap over pairs of neighbouring blocks. The same step without a line of ours is run
with the automatic instrumentation and without it (`auto_step_ratio`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

from pulsetrain.collectors.rank.auto import backward, evaluation, loader, optimizers
from pulsetrain.collectors.rank.auto.install import context
from pulsetrain.collectors.rank.collectives import Tracker
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.drain import Drain
from pulsetrain.collectors.reading.ring_reader import RingReader

DRAIN_S = 0.2  # the agent's own interval


def drain(fd: int, stop: Event, rows: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    """What the agent does to one ring, until told to stop; reports how many rows it made."""
    drain = Drain(RingReader(fd), job="bench", attempt=0, node="n", rank=0, local_rank=0, address="")
    total = 0
    while not stop.wait(DRAIN_S):
        total += sum(batch.num_rows for batch in drain.batches(time.time_ns()))
    rows.put((total, drain.dropped))


@contextlib.contextmanager
def agent(fd: int) -> Iterator[dict[str, int]]:
    """Another process that reads the ring while the block runs; then how much it saw."""
    context = multiprocessing.get_context("fork")
    stop, rows, seen = context.Event(), context.Queue(), {"rows": 0, "dropped": 0}
    process = context.Process(target=drain, args=(fd, stop, rows), daemon=True)
    process.start()
    try:
        yield seen
    finally:
        stop.set()
        seen["rows"], seen["dropped"] = rows.get(timeout=10)
        process.join()


def median_ns(call: Callable[[], object], *, batch: int = 100, times: int = 400) -> float:
    """Median over batches of the mean time of one call, less that of the loop around it."""

    def loop(body: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for _ in range(batch):
            body()
        return (time.perf_counter_ns() - began) / batch

    empty = statistics.median(loop(_nothing) for _ in range(times))
    return statistics.median(loop(call) for _ in range(times)) - empty


def _nothing() -> None:
    pass


def phase_cost(handle: Handle) -> float:
    """Median ns of entering and leaving one phase, the loop's own cost taken off."""

    def phase() -> None:
        with handle.phase("forward"):
            pass

    return median_ns(phase)


def record_function_cost() -> float:
    """The same for `torch.profiler.record_function`, without a profiler running."""

    def record() -> None:
        with torch.profiler.record_function("forward"):
            pass

    return median_ns(record)


class Job:
    """A small transformer's training step."""

    def __init__(self, device: str, *, dim: int, batch: int) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(
            nn.Embedding(256, dim), nn.TransformerEncoder(layer, 2), nn.Linear(dim, 256)
        )
        self.model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randint(256, (batch, 65), device=device)
        self.loader = iter(DataLoader(TensorDataset(self.data.repeat(4096, 1)), batch_size=batch))

    def loss(self) -> Tensor:
        logits = self.model(self.data[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.data[:, 1:].flatten())

    def untouched_step(self) -> None:
        """One step as a script writes it that knows nothing of us."""
        (self.data,) = next(self.loader)
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, handle: Handle) -> None:
        """One step as a watched script writes it."""
        with handle.phase("data"):
            self.data = self.data.roll(1, 0)
        with handle.phase("forward"):
            loss = self.loss()
        with handle.phase("backward"):
            loss.backward()
        with handle.phase("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        handle.log(loss=loss)
        handle.step(tokens=self.data.numel())


def block(job: Job, handle: Handle, steps: int, device: str) -> float:
    """Seconds of a step, the mean over one block."""
    began = time.perf_counter()
    for _ in range(steps):
        job.step(handle)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def pairs(job: Job, handle: Handle, *, blocks: int, steps: int, device: str) -> list[tuple[float, float]]:
    """(without, with) seconds of a step for each pair of neighbouring blocks; who goes first alternates."""
    bare = Handle(None)
    block(job, bare, steps, device)
    block(job, handle, steps, device)
    result = []
    for i in range(blocks):
        if i % 2:
            watched = block(job, handle, steps, device)
            result.append((block(job, bare, steps, device), watched))
        else:
            plain = block(job, bare, steps, device)
            result.append((plain, block(job, handle, steps, device)))
    return result


class Hooks:
    """The automatic instrumentation of this process, which can be taken out and put back."""

    def __init__(self, handle: Handle) -> None:
        scaler = torch.amp.grad_scaler.GradScaler
        iterator = dataloader._BaseDataLoaderIter
        owners = [(torch.autograd, "backward"), (scaler, "scale"), (scaler, "step")]
        owners += [(nn.Module, "train"), (iterator, "__next__")]
        owners += [(torch_optimizer, f"_global_optimizer_{when}_hooks") for when in ("pre", "post")]
        self._plain = [(owner, name, getattr(owner, name)) for owner, name in owners]
        for _, name, hooks in self._plain[-2:]:
            setattr(torch_optimizer, name, hooks.copy())
        auto = context(handle)
        for part in (backward, optimizers, loader, evaluation):
            part.install(auto)
        self._hooked = [(owner, name, getattr(owner, name)) for owner, name in owners]

    def put(self, *, into: bool) -> None:
        """Put the hooks into torch, or take them out."""
        for owner, name, value in self._hooked if into else self._plain:
            setattr(owner, name, value)


def auto_pairs(
    job: Job, handle: Handle, *, blocks: int, steps: int, device: str
) -> list[tuple[float, float]]:
    """As `pairs`, of a step without a line of ours: without the automatic instrumentation, and with it."""
    hooks = Hooks(handle)

    def timed(*, watched: bool) -> float:
        hooks.put(into=watched)
        began = time.perf_counter()
        for _ in range(steps):
            job.untouched_step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    for watched in (False, True, True):
        timed(watched=watched)
    result = []
    for i in range(blocks):
        first = timed(watched=bool(i % 2))
        second = timed(watched=not i % 2)
        result.append((second, first) if i % 2 else (first, second))
    hooks.put(into=False)
    return result


def interval(samples: list[tuple[float, float]], *, draws: int = 4000) -> tuple[float, float, float]:
    """(ratio, low, high): median over pairs, and the middle 95 % of it over bootstrap draws of the pairs."""
    rng = random.Random(0)

    ratios = [watched / plain for plain, watched in samples]
    drawn = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


def collective_cost(handle: Handle, *, rounds: int = 60, calls: int = 50) -> dict[str, float]:
    """Median us of an all-reduce of 4 numbers in a gloo group of one, and what hooks add, interleaved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    group, tensor = dist.group.WORLD, torch.ones(4)
    assert handle.state is not None
    tracker = Tracker(handle.state)
    wait = tracker.watched_wait(dist.Work.wait)

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            wait(dist.all_reduce(tensor, group=group, async_op=True))
        return (time.perf_counter() - began) / calls * 1e6

    plain, hooked = [], []
    for _ in range(rounds):
        plain.append(timed())
        tracker.attach(group, "world", lambda: (0,))
        hooked.append(timed())
        tracker.detach([])
    dist.destroy_process_group()
    added = statistics.median(h - p for h, p in zip(hooked, plain, strict=True))
    return {"plain_us": statistics.median(plain), "added_us": added}


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Every figure, by name; times in the unit of the name's suffix."""
    torch.set_num_threads(1)
    fd = create_ring()
    with agent(fd) as seen:  # forked before CUDA is touched
        handle = Handle(RingWriter(fd))
        phase_ns, record_ns = phase_cost(handle), record_function_cost()
        hooks = collective_cost(handle)
        job = Job(args.device, dim=args.dim, batch=args.batch)
        job.step(handle)  # from here on the handle knows the device
        samples = pairs(job, handle, blocks=args.blocks, steps=args.steps, device=args.device)
        assert handle.state is not None
        auto = Handle(handle.state.ring)
        untouched = auto_pairs(job, auto, blocks=args.blocks, steps=args.steps, device=args.device)
        device_phase = {"phase_device_ns": round(phase_cost(handle))} if args.device == "cuda" else {}
    ratio, low, high = interval(samples)
    auto_ratio, auto_low, auto_high = interval(untouched)
    return {
        "phase_ns": round(phase_ns),
        "record_function_ns": round(record_ns),
        "step_ratio": round(ratio, 5),
        "step_ratio_low": round(low, 5),
        "step_ratio_high": round(high, 5),
        "auto_step_ratio": round(auto_ratio, 5),
        "auto_step_ratio_low": round(auto_low, 5),
        "auto_step_ratio_high": round(auto_high, 5),
        "auto_step_us": round(statistics.median(w - p for p, w in untouched) * 1e6, 1),
        "step_ms": round(statistics.median(p for p, _ in samples) * 1e3, 3),
        "collective_ns": round(hooks["added_us"] * 1e3),
        "collective_plain_us": round(hooks["plain_us"], 1),
        "rows_read": seen["rows"],
        "rows_dropped": seen["dropped"],
        "blocks": args.blocks,
        "steps_per_block": args.steps,
        "cores": len(os.sched_getaffinity(0)),
        "backend": "gloo",
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "errors": RingReader(fd).status().errors,
        **device_phase,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--blocks", type=int, default=200, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=4, help="steps in a block")
    parser.add_argument("--dim", type=int, default=128, help="width of the model")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 bytes in a step")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    print(json.dumps(measure(args)))


if __name__ == "__main__":
    main()
