"""Steps FIRST to LAST of the sharded example at one number of ranks, between two checkpoints of torch's own.

    torchrun --nproc-per-node N sharded_reference.py (the example's flags)

Nothing here restores through Pulsetrain. So it says what a job has to do whose world changes at these steps.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh

from pulsetrain.elastic import ElasticSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from train_gpt import Trainer, set_up
from train_gpt_elastic import arguments, sequences


def main() -> None:
    """Load, train, save, and write the losses."""
    folder, first, last = Path(os.environ["FOLDER"]), int(os.environ["FIRST"]), int(os.environ["LAST"])
    args = arguments()
    device = set_up(args)
    mesh = init_device_mesh(device.type, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp"))
    trainer = Trainer(args, mesh, device)
    model, optimizer = trainer.model, trainer.optimizer
    if first:
        saved = _state(model, optimizer)
        dcp.load(saved, checkpoint_id=folder / f"before-{first}")
        states.set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
    sampler = ElasticSampler(
        args.samples, batch=args.batch, seed=args.seed, rank=trainer.replica, world=args.dp
    )
    sampler.consumed = first * args.batch
    losses = {}
    for step, share in zip(range(first, last + 1), sampler, strict=False):
        inputs, targets = (t.to(device) for t in sequences(trainer.text, share, args.seq))
        losses[step] = trainer.forward_backward(inputs, targets)
        trainer.average_gradients()
        trainer.update(step)
    dcp.save(_state(model, optimizer), checkpoint_id=folder / f"before-{last + 1}")
    (folder / f"losses-{first}-rank-{dist.get_rank()}.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


def _state(model, optimizer):
    of_model, of_optimizer = states.get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


if __name__ == "__main__":
    main()
