"""Exports a committed checkpoint as Hugging Face safetensors, with one tensor in memory at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pulsetrain.checkpoint.storage.manifest import Checkpoints, Manifest
from pulsetrain.checkpoint.storage.tensor_index import Stored, TensorIndex
from pulsetrain.core.errors import CheckpointError, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.progress import Report, unseen
from pulsetrain.core.whole_file import whole_file

DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint8": "U8",
        "bool": "BOOL",
    }
)


def export_safetensors(
    checkpoints: Checkpoints,
    manifest: Manifest,
    folder: Path,
    *,
    prefix: str = "model.",
    shard_bytes: int = 5 << 30,
    may_differ: Sequence[str] = (),
    report: Report = unseen,
) -> list[Path]:
    """Write every tensor whose name begins with `prefix`, and return the files. Names lose the prefix.

    More than `shard_bytes` becomes several files and model.safetensors.index.json, as Hugging Face reads
    them. `report` takes the bytes that are written, of all bytes. `may_differ` is as for `TensorIndex`.

    Raises `CheckpointError` where no tensor has the prefix, safetensors does not know its type, or ranks have
    saved different values of it. Raises `UsageError` for a folder that cannot be written.
    """
    index = TensorIndex(checkpoints, manifest, may_differ=may_differ)
    wanted = [t for name, t in sorted(index.tensors.items()) if name.startswith(prefix)]
    if not wanted:
        some = ", ".join(sorted({n.split(".")[0] for n in index.tensors})[:10])
        raise CheckpointError(f"no tensor begins with {prefix!r}; names begin with: {some}")
    shards = _shards(wanted, shard_bytes)
    written, total = 0, sum(map(_size, wanted))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for number, shard in enumerate(shards, start=1):
            of = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
            path = folder / f"model{of}.safetensors"
            with contextlib.closing(_write(path, shard, index, prefix, manifest)) as sizes:
                for size in sizes:
                    written += size
                    report(written, total)
            files.append(path)
        if len(shards) > 1:
            files.append(_write_index(folder, shards, files, prefix))
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from error
    return files


def _size(stored: Stored) -> int:
    return stored.elements * max((b.itemsize for b in stored.boxes), default=0)


def _shards(tensors: list[Stored], limit: int) -> list[list[Stored]]:
    shards: list[list[Stored]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + _size(tensor) > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += _size(tensor)
    return shards


def _write(
    path: Path, shard: list[Stored], index: TensorIndex, prefix: str, manifest: Manifest
) -> Generator[int]:
    """Write one file. Yields the size of each tensor when it is written."""
    header: JsonObject = {"__metadata__": {"format": "pt", "job": manifest.job, "step": str(manifest.step)}}
    offset = 0
    for tensor in shard:
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{tensor.name}: safetensors has no type for {tensor.dtype}")
        end = offset + _size(tensor)
        header[tensor.name.removeprefix(prefix)] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            yield file.write(index.read(tensor.name))


def _write_index(folder: Path, shards: list[list[Stored]], files: list[Path], prefix: str) -> Path:
    where = {
        t.name.removeprefix(prefix): file.name
        for shard, file in zip(shards, files, strict=True)
        for t in shard
    }
    total = sum(_size(t) for shard in shards for t in shard)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2))
    return path
