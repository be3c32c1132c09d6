"""One of two ranks that restore a model of FSDP1 on CPUs: `fsdp1_job.py FOLDER rank0_only|full`."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

from pulsetrain import Checkpointer
from pulsetrain.core.errors import CheckpointError


def main(folder: str, mode: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = FullyShardedDataParallel(torch.nn.Linear(4, 3), device_id=torch.device("cpu"))
    config = FullStateDictConfig(rank0_only=mode == "rank0_only")
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, config)
    checkpointer = Checkpointer({"model": model})
    before = torch.cat([p.detach().clone().flatten() for p in model.parameters()])
    try:
        checkpointer.save(1).wait()
    except CheckpointError as error:
        print(error)
        return
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpointer.restore(1)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    print("restored" if torch.equal(before, after) else f"{before} became {after}")
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
