"""Waits for other ranks in every way that a script may, two rounds of it. Prints a digest at its end.

Four ranks: tensor pairs (0, 1) and (2, 3), a pipeline from each even rank to the next one.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import pulsetrain

out = Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pairs = [dist.new_group([n, n + 1]) for n in range(0, size, 2)]
pair, peer = pairs[rank // 2], rank ^ 1
pulse = pulsetrain.init()
value = torch.full((8,), float(rank + 1))


def compute() -> None:
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass


for _ in range(2):
    compute()
    dist.all_reduce(value, group=pair)
    compute()
    if rank % 2 == 0:
        dist.send(value, dst=peer)
        dist.recv(value, src=peer)
    else:
        dist.recv(value, src=peer)
        dist.send(value * 2, dst=peer)
    compute()
    works = [dist.all_reduce(value.clone(), async_op=True), dist.barrier(async_op=True)]
    compute()
    for work in reversed(works):
        work.wait()
    value = functional.wait_tensor(functional.all_reduce(value, "sum", pair)) / 4
    dist.monitored_barrier()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, rank)
    if rank == 0:
        dist.distributed_c10d._get_default_store().set("word", "given")
    dist.distributed_c10d._get_default_store().get("word")
    pulse.step()

mark = out / f"mark{rank}"  # no hook knows of this wait: rank 3 comes first, and waits for rank 0
if rank == 0:
    compute()
    mark.touch()
while not (out / "mark0").exists():
    time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
partial = out / f"rank{rank}.partial"
partial.write_text(f'{{"digest": "{value.tolist()}"}}')
os.replace(partial, out / f"rank{rank}.json")
