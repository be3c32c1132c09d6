"""The job of `injected`: each rank multiplies matrices whose product it knows, and logs a loss.

The file that is its only argument says what goes wrong, as JSON: {"rank", "attempt", "step", "end"}. From
`step` on the fault library makes that rank's loss a NaN. With an `end` it raises an error of that text. A
product that is wrong makes the loss a NaN by itself.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import pulsetrain
from pulsetrain.faults.inside import Injector
from pulsetrain.faults.plan import Fault

STEP_S = 0.05
WIDTH = 32


def plan(file: Path) -> dict[str, object]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def main() -> None:
    dist.init_process_group("gloo")
    pulse = pulsetrain.init()
    rank, file = dist.get_rank(), Path(sys.argv[1])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    a = torch.arange(WIDTH * WIDTH, dtype=torch.float32).view(WIDTH, WIDTH) % 7
    known = torch.matmul(a, a)  # the fault library makes only the operator wrong
    step = 0
    while True:
        asked = plan(file) if (wanted := file.exists()) else {}
        with pulse.phase("forward"):
            residual = float((known - a @ a).view(-1)[0])
            loss = 1.0 + float(torch.sqrt(torch.tensor(residual)))
            time.sleep(STEP_S)
        if wanted and asked.get("rank") == rank and asked.get("attempt") == attempt:
            first = int(str(asked["step"]))
            if first >= 0:
                fault = Fault(kind="nan", rank=rank, step=first, until=1 << 60, attempt=-1)
                loss = Injector((fault,), rank=rank, attempt=attempt).value(max(step, first), loss)
            if asked.get("end"):
                raise FloatingPointError(str(asked["end"]))
        dist.barrier()
        pulse.log(loss=loss)
        pulse.step()
        step += 1


if __name__ == "__main__":
    main()
