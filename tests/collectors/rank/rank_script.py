"""One rank of the two that `test_ranks` starts. The first argument says what it does."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pulsetrain
from pulsetrain.collectors.rank import bootstrap


def everything(watch: pulsetrain.Handle, mesh: DeviceMesh) -> None:
    """A step for each way of communicating; ends as a script with a bug does, with an operation in flight."""
    other, tensor = 1 - dist.get_rank(), torch.ones(4)
    group = mesh.get_group("tp")
    with watch.phase("forward"):
        dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    dist.barrier()
    watch.step()  # 0 is over
    if other:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    for request in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, other), dist.P2POp(dist.irecv, torch.empty(4), other)]
    ):
        request.wait()
    watch.step()  # 1
    (functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1).sum()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    watch.step()  # 2
    model(torch.ones(2, 8)).sum().backward()
    watch.step()  # 3
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    watch.step()  # 4
    ddp(torch.ones(2, 4)).sum().backward()
    time.sleep(3)
    watch.step()  # 5
    sharded = nn.Linear(4, 4)
    fully_shard(sharded, mesh=mesh["tp"])
    sharded(torch.ones(2, 4)).sum().backward()
    watch.step()  # 6
    pipeline(mesh)
    watch.step()  # 7
    request = dist.isend(tensor, other)
    dist.recv(torch.empty(4), other)
    dist.barrier()
    del request  # received by now, and never waited for
    watch.step()  # 8
    if other:
        time.sleep(1)
    dist.all_reduce(tensor, async_op=True)
    raise RuntimeError("the script's own bug")


def pipeline(mesh: DeviceMesh) -> None:
    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(4, 4), rank, 2, torch.device("cpu"), group=mesh.get_group("tp"))
    schedule = Schedule1F1B(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(torch.ones(6, 4))
    else:
        schedule.step(target=torch.ones(6, 4))


def stuck(watch: pulsetrain.Handle, _: DeviceMesh) -> None:
    """Rank 1 holds its GIL for ever in the second step; rank 0 waits for it in a collective."""
    dist.all_reduce(torch.ones(4))
    watch.step()
    if dist.get_rank() == 1:
        with watch.phase("my loader", "data"):
            ctypes.PyDLL(None).sleep(600)
    with watch.phase("backward"):
        dist.all_reduce(torch.ones(1024))


def main() -> None:
    torch.set_num_threads(1)
    bootstrap.install()
    store = dist.FileStore(os.environ["STORE"], 2)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    watch = pulsetrain.init(mesh)
    {"everything": everything, "stuck": stuck}[sys.argv[1]](watch, mesh)


if __name__ == "__main__":
    main()
