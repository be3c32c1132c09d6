"""DLRover's flash checkpoint of one state, in any Python in which it and torch are installed:

    PYTHON benchmarks/peers/flash_checkpoint.py MIB

What the loop waits for while the state goes into shared memory: the first save, and the median of later ones.
Prints one JSON object, or {"missing": why}. Nothing of Pulsetrain is imported. The saver that it starts and
its shared memory are ended and removed here, since they outlive the process.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TENSORS = 64
LATER = 5


def measure(mib: int, place: Path) -> dict[str, Any]:
    """Seconds of `save_checkpoint` into memory."""
    import torch
    from dlrover.python.common import multi_process
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    multi_process.SOCKET_TMP_DIR = f"{place}/sockets/"  # its own stands in /tmp for all jobs
    state = {f"tensor-{i}": torch.rand(mib * (1 << 20) // 4 // TENSORS) for i in range(TENSORS)}
    checkpointer = DdpCheckpointer(str(place / "checkpoints"))

    def save(step: int) -> float:
        path, began = str(place / "checkpoints" / f"{step}.pt"), time.perf_counter()
        checkpointer.save_checkpoint(step, dict(state), path, StorageType.MEMORY)
        return time.perf_counter() - began

    first, *later = (save(step) for step in range(1, LATER + 2))
    step, held = checkpointer._engine.get_state_dict_from_memory()
    if step != LATER + 1 or not torch.equal(held["model_states"]["tensor-0"], state["tensor-0"]):
        return {"missing": f"step {step} is in memory after {LATER + 1} saves"}
    return {
        "version": importlib.metadata.version("dlrover"),
        "first_s": first,
        "later_s": statistics.median(later),
    }


def main() -> None:
    """Measure, print, leave nothing behind."""
    run = f"pulsetrain-{os.getpid()}"
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(own, TORCHELASTIC_RUN_ID=run, ELASTIC_JOB_NAME=run)
    before = set(Path("/dev/shm").iterdir())
    with tempfile.TemporaryDirectory(prefix="flash-", ignore_cleanup_errors=True) as place:
        try:
            answer = measure(int(sys.argv[1]), Path(place))
        except ImportError as error:
            answer = {"missing": f"not installed: {error}"}
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
    for left in set(Path("/dev/shm").iterdir()) - before:
        if "ckpt_shm" in left.name:
            with contextlib.suppress(OSError):
                left.unlink()
    print(json.dumps(answer), flush=True)
    os._exit(0)  # threads of its own would wait for the saver


if __name__ == "__main__":
    main()
