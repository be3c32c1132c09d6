"""The sharded example job without an end. It writes down what it restored, bit by bit, and what it did.

Each rank writes the samples of a step before its gradient can be used, and digests of all whole tensors of
its stage before it saves. A restore is right where the digests are those of the step as it was saved.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import pulsetrain
from pulsetrain.elastic import ElasticSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import Trainer, set_up  # beside the examples, not installed
from train_gpt_elastic import Record, arguments, sequences


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, whoever has which part of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digests(trainer: Trainer) -> dict[str, str]:
    """A hash of each parameter of this stage with its moments. All ranks of a group call it together."""
    found = {}
    for name, parameter in trainer.model.named_parameters():
        mine = hashlib.sha256(whole(parameter.detach()).numpy().tobytes())
        for _, moment in sorted(trainer.optimizer.state[parameter].items()):
            mine.update(whole(moment).numpy().tobytes())
        found[name] = mine.hexdigest()[:16]
    return found


def train(args: argparse.Namespace) -> None:
    """Train until somebody ends the process."""
    device = set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer, record = Trainer(args, mesh, device), Record(args.record)
    sampler = ElasticSampler(
        args.samples, batch=args.batch, seed=args.seed, rank=trainer.replica, world=args.dp
    )
    watch = pulsetrain.init(mesh=mesh)
    checkpointer = pulsetrain.Checkpointer({**trainer.state, "sampler": sampler})
    restored = checkpointer.restore()
    counts = mesh["tp"].get_local_rank() == 0 == mesh["pp"].get_local_rank()
    world = dist.get_world_size()
    if restored is not None:
        record.note(restored=restored, world=world, at=sampler.consumed, digests=digests(trainer))
    step = 0 if restored is None else restored + 1
    while True:
        for share in sampler:
            inputs, targets = (t.to(device) for t in sequences(trainer.text, share, args.seq))
            ids = [index for micro in share.microbatches for index in micro] if counts else []
            record.note(step=step, world=world, ids=ids)  # before others can use its gradient
            loss = trainer.forward_backward(inputs, targets)
            trainer.average_gradients()
            trainer.update(step)
            sampler.advance(share)
            record.note(step=step, world=world, ids=[], loss=loss, digests=digests(trainer))
            watch.step(tokens=inputs.numel())
            checkpointer.save(step)
            time.sleep(args.pause)
            step += 1


if __name__ == "__main__":
    torch.manual_seed(0)
    train(arguments())
