"""A small tensor-, pipeline- and data-parallel job on real processes, for the resharding tests.

    python sharded_job.py FOLDER PLAN

PLAN is a JSON list of {"name", "tp", "pp", "dp", "load": name or null, "plain": bool}. Each job loads
another's checkpoint (or trains three steps), writes what it holds as FOLDER/name.json, and persists it
under its own name. One process imports torch once and forks the ranks.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pulsetrain.checkpoint.checkpointer import Checkpointer
from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.checkpoint.reshard import load_resharded
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from tests.checkpoint.trainers import wait_until

BLOCKS, DIM = 4, 8


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(DIM)
        self.up = torch.nn.Linear(DIM, 4 * DIM)
        self.down = torch.nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


class Job:
    """One rank: the blocks of its stage, projections sharded over tp unless `plain`."""

    def __init__(self, rank: int, plan: dict) -> None:
        tp, pp, dp = plan["tp"], plan["pp"], plan["dp"]
        stage = rank // (tp * dp)
        torch.manual_seed(11)
        every = [Block() for _ in range(BLOCKS)]  # the same parameters in every shape
        mine = range(stage * BLOCKS // pp, (stage + 1) * BLOCKS // pp)
        self.model = torch.nn.ModuleDict({str(i): every[i] for i in mine})
        if not plan["plain"]:
            mesh = init_device_mesh("cpu", (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
            for block in self.model.values():
                parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        parameters = dict(self.model.named_parameters())
        sharded = [p for n, p in parameters.items() if "norm" not in n]
        groups = [{"params": sharded}, {"params": [p for n, p in parameters.items() if "norm" in n]}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "seen": 0}

    def step(self) -> dict[str, float]:
        self.optimizer.zero_grad()
        losses = {}
        for name, block in self.model.items():
            generator = torch.Generator().manual_seed(int(name) + 100 * self.state["seen"])
            loss = block(torch.randn(5, DIM, generator=generator)).pow(2).mean()
            loss.backward()
            losses[name] = float(loss)
        self.optimizer.step()
        self.schedule.step()
        self.state["seen"] += 1
        return losses

    def digests(self) -> dict[str, str]:
        """Hash of every whole parameter and optimizer tensor that this rank has a part of."""
        found = {f"model.{n}": p.detach() for n, p in self.model.named_parameters()}
        names = {id(p): n for n, p in self.model.named_parameters()}
        for parameter, entry in self.optimizer.state.items():
            for kind, tensor in entry.items():
                found[f"optimizer.{names[id(parameter)]}.{kind}"] = tensor
        whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in sorted(found.items())}
        return {n: hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for n, t in whole.items()}


def rank_main(rank: int, world: int, folder: Path, plan: dict, fd: int) -> None:
    torch.set_num_threads(1)
    where = folder / f"rendezvous-{plan['name']}"
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=world)
    job = Job(rank, plan)
    read = 0
    if plan["load"]:
        step, read = load_resharded(str(folder / "store"), plan["load"], job.state)
        assert step == 3
    else:
        for _ in range(3):
            job.step()
    environ = {"RANK": str(rank), "WORLD_SIZE": str(world), "PULSETRAIN_ARENA_FD": str(fd)}
    saver = Checkpointer(job.state, environ=environ)
    saver.save(3, durable=True).wait()
    saver.close()
    report = {
        "digests": job.digests(),
        "seen": job.state["seen"],
        "lr": job.optimizer.param_groups[0]["lr"],
        "bytes_read": read,
        "held": sum(p.numel() for p in map(local, job.model.parameters())) * 12,
        "losses": job.step(),
    }
    (folder / f"{plan['name']}-{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def run(folder: Path, plan: dict) -> None:
    world = plan["tp"] * plan["pp"] * plan["dp"]
    fds = [create_arena() for _ in range(world)]
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                rank_main(rank, world, folder, plan, fds[rank])
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit(f"job {plan['name']} failed")
    service = CheckpointService(
        CheckpointServiceConfig(storage=str(folder / "store"), replicas=1, persist_every=0, poll_s=0.005),
        job=plan["name"],
        node="n",
        address="127.0.0.1",
    )
    for rank, fd in enumerate(fds):
        service.attach(rank, fd)
    wait_until(lambda: service._persister.newest, 60)
    service.close()


if __name__ == "__main__":
    for entry in json.loads(sys.argv[2]):
        run(Path(sys.argv[1]), entry)
