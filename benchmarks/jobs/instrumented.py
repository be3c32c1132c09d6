"""Run a script of this folder with phases and steps of its own.

    pulsetrain run --nproc-per-node 2 benchmarks/jobs/instrumented.py ddp --steps 50

The script marks its phases by `torch.profiler.record_function` under the name `timed`. It calls `after_step`.
Here both are Pulsetrain's. Scripts without these names cannot be run so.
"""

from __future__ import annotations

import importlib
import sys

import pulsetrain

CAN = ("ddp", "fsdp2", "tensor_parallel", "pipeline")


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in CAN:
        sys.exit(f"instrumented: {name!r} is none of {', '.join(CAN)}")
    module = importlib.import_module(name)
    watch = pulsetrain.init()
    module.timed = watch.phase
    module.after_step = watch.step
    say = module.say

    def log_and_say(step: int, loss: float) -> None:
        watch.log(loss=loss)
        say(step, loss)

    module.say = log_and_say
    module.main()


if __name__ == "__main__":
    main()
