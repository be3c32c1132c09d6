"""Counts a rank's communication without Pulsetrain's hooks, and writes the count when the rank ends.

Python imports this in each rank whose `PYTHONPATH` names this folder. Collectives are counted by torch's own
flight recorder, which gloo feeds in C++ once `TORCH_FR_BUFFER_SIZE` is set. It leaves sends and receives out,
so these are counted where Python enters them.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BYTES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1, "Short": 2}
BYTES |= {"Int": 4, "Long": 8}
transfers: list[int] = []  # bytes of each send and receive
group_sizes: dict[str, int] = {}  # of each process group, before it was destroyed


def product(sizes: Sequence[int]) -> int:
    return functools.reduce(lambda a, b: a * b, sizes, 1)


def nbytes(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    return sum(product(s) * BYTES[t] for s, t in zip(shapes, types, strict=False))


def entry_bytes(entry: dict[str, Any]) -> int:
    """The larger of what goes in and what comes out.

    Of a coalesced all-gather the recorder keeps one rank's part as the output, so that is multiplied instead.
    """
    inputs = nbytes(entry["input_sizes"], entry["input_dtypes"])
    if entry["profiling_name"] == "gloo:all_gather":
        inputs *= group_sizes[entry["process_group"][0]]
    return max(inputs, nbytes(entry["output_sizes"], entry["output_dtypes"]))


def counted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def transfer(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        transfers.append(tensor.nbytes)
        return original(tensor, *args, **kwargs)

    return transfer


def keep_sizes() -> None:
    from torch.distributed import distributed_c10d

    group_sizes.update({name: group.size() for group, name in distributed_c10d._world.pg_names.items()})


def before_destroy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy(*args: Any, **kwargs: Any) -> Any:
        keep_sizes()
        return original(*args, **kwargs)

    return destroy


def write(folder: Path) -> None:
    """One file for each rank: the name and the bytes of every operation, in order."""
    from torch._C import _distributed_c10d as c10d

    keep_sizes()
    entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])
    operations = [(e["profiling_name"].removeprefix("gloo:"), entry_bytes(e)) for e in entries]
    operations += [("transfer", size) for size in transfers]
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(operations))


def install() -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for name in ("isend", "irecv"):
        wrapped = counted(getattr(dist, name))
        setattr(dist, name, wrapped)
        setattr(distributed_c10d, name, wrapped)
    dist.destroy_process_group = before_destroy(dist.destroy_process_group)
    atexit.register(write, Path(os.environ["JOBS_COUNT"]))


if "RANK" in os.environ and "JOBS_COUNT" in os.environ:
    install()
