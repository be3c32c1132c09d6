"""A short training whose every step is checked, for where a job's own steps cannot be replayed.

    torchrun --nproc-per-node 8 -m pulsetrain.diagnostics.replay --seconds 20

All ranks train the same small model on the same batches, so all must compute the same gradients, bit by bit.
Gradients are rounded to bfloat16 before they are summed in float32. So the sum of equal ones is exact, in any
order, and it must be their multiple. This is bitwise alignment of ByteRobust (arXiv 2509.16293), under load.
Ranks on machines of different kinds may round differently. Then only the loss is checked.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pulsetrain.diagnostics import machine_kind
from pulsetrain.diagnostics.measurement import SEED
from pulsetrain.diagnostics.members import reason

if TYPE_CHECKING:
    import torch

SECONDS = 20.0
LIMIT_S = 60.0
"""how long ranks wait for each other"""
EXACT_RANKS = 1 << 16
"""in float32 the sum of so many equal numbers of 8 bits is exact"""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the model and its batch."""

    layers: int
    width: int
    tokens: int


SIZES = {
    "cpu": Size(layers=2, width=256, tokens=128),
    "cuda": Size(layers=4, width=2048, tokens=4096),
}


class ReplayFailed(Exception):
    """A step came out wrong. The text says how."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train in the process group that torchrun's environment names. 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long to train")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds to wait for other ranks")
    args = parser.parse_args(argv)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or sums come in another order each time
    try:
        steps = run(args.seconds, args.limit)
    except Exception as error:  # noqa: BLE001 - any failure here is the result of the replay
        sys.stderr.write(f"{reason(error)}\n")
        return 1
    sys.stdout.write(f"replayed {steps} steps\n")
    return 0


def run(seconds: float, limit_s: float) -> int:
    """Train for `seconds`. Returns the number of steps. Raises `ReplayFailed` for a wrong one."""
    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True)
    device = _device()
    if device.type == "cpu":
        torch.set_num_threads(1)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=limit_s))
    try:
        return _train(device, SIZES[device.type], seconds)
    finally:
        dist.destroy_process_group()


def _device() -> torch.device:
    """The GPU of this rank, where all ranks of this machine have one."""
    import torch

    local, number = (int(os.environ.get(name, "1")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if not torch.cuda.is_available() or torch.cuda.device_count() < number:
        return torch.device("cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _train(device: torch.device, size: Size, seconds: float) -> int:
    import torch

    model = _Model.of(size, device)
    optimizer = torch.optim.AdamW(model.parameters, lr=1e-3)
    batches = torch.Generator().manual_seed(SEED + 1)
    check = _StepCheck(device)
    begun_s = None
    for step in itertools.count():
        batch = torch.randn(size.tokens, size.width, generator=batches).to(device)
        loss = (model(batch) - batch.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        begun_s = begun_s or time.monotonic()  # the first step is for drivers and libraries to begin
        if check.take(step, loss, model.parameters, over=time.monotonic() - begun_s >= seconds):
            return step + 1
        optimizer.step()
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class _Model:
    """Blocks of layer norm and two products, as a transformer's feed-forward parts have them."""

    weights: Sequence[tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, size: Size, device: torch.device) -> _Model:
        """The same weights everywhere."""
        import torch

        draw = torch.Generator().manual_seed(SEED)

        def weight(rows: int, columns: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(rows, columns, generator=draw) / rows**0.5
            return drawn.to(device).detach().requires_grad_(True)

        inner = 4 * size.width
        return cls([(weight(size.width, inner), weight(inner, size.width)) for _ in range(size.layers)])

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [weight for block in self.weights for weight in block]

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        hidden: torch.Tensor = batch
        for first, second in self.weights:
            inner: torch.Tensor = functional.gelu(functional.layer_norm(hidden, hidden.shape[-1:]) @ first)
            hidden = hidden + inner @ second
        return hidden


class _StepCheck:
    """Reduces gradients, and compares what ranks computed."""

    def __init__(self, device: torch.device) -> None:
        import torch
        import torch.distributed as dist

        self._device, self._rank, self._size = device, dist.get_rank(), dist.get_world_size()
        gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
        machine = f"{machine_kind.describe(gpus)} {machine_kind.features()}"
        kind = zlib.crc32(f"{machine} {torch.backends.cpu.get_cpu_capability()} {torch.__version__}".encode())
        self._alike = len({row[0] for row in self._gathered([kind])}) == 1 and self._size < EXACT_RANKS

    def take(self, step: int, loss: torch.Tensor, parameters: Sequence[torch.Tensor], *, over: bool) -> bool:
        """Sum the gradients over all ranks. Whether the first rank says that it is over.

        Raises `ReplayFailed`, on all ranks alike.
        """
        import torch
        import torch.distributed as dist

        grads = [p.grad for p in parameters if p.grad is not None]
        own = torch.cat([grad.flatten() for grad in grads]).to(torch.bfloat16).float()
        summed = own.clone()
        dist.all_reduce(summed)
        wrong = int((summed != own * self._size).sum()) if self._alike else 0
        bits = int(own.view(torch.int32).sum(dtype=torch.int64))
        rows = self._gathered([bits, wrong, int(bool(torch.isfinite(loss))), int(over)])
        self._judge(step, rows)
        offset = 0
        for grad in grads:
            grad.copy_(summed[offset : offset + grad.numel()].view_as(grad) / self._size)
            offset += grad.numel()
        return bool(rows[0][3])

    def _judge(self, step: int, rows: Sequence[Sequence[int]]) -> None:
        infinite = [rank for rank, row in enumerate(rows) if not row[2]]
        if infinite:
            raise ReplayFailed(f"step {step}: the loss is not finite on {_named(infinite)}")
        if not self._alike:
            return
        bits = [row[0] for row in rows]
        usual = max(set(bits), key=bits.count)
        odd = [rank for rank, each in enumerate(bits) if each != usual]
        if odd:
            who = _named(odd) if 2 * len(odd) < len(bits) else "half of the ranks"
            raise ReplayFailed(f"step {step}: {who} computed other gradients than the rest")
        if any(row[1] for row in rows):
            raise ReplayFailed(f"step {step}: gradients were summed wrongly")

    def _gathered(self, own: Sequence[int]) -> list[list[int]]:
        """What each rank gives, by rank."""
        import torch
        import torch.distributed as dist

        mine = torch.tensor(own, dtype=torch.int64, device=self._device)
        parts = [torch.zeros_like(mine) for _ in range(self._size)]
        dist.all_gather(parts, mine)
        return [part.tolist() for part in parts]


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


if __name__ == "__main__":
    sys.exit(main())
