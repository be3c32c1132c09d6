"""How large the images of replicas are: eight data-parallel ranks beside one, and the second image of each.

A plain DDP job of one rank, and one of eight, are pre-empted by dumping their processes with CRIU, resumed,
and dumped once more after ten steps. `image_ratio_8` is what the node keeps of eight ranks over what it keeps
of one, both in their first image. `images` has for each number of ranks what CRIU wrote (`raw`), what is
kept of that (`stored`), what the second image added (`new`), the parameters and optimizer state of one rank,
which change in each step (`state`), all in bytes, and the seconds of the stages. Needs root and CRIU.

    PYTHONPATH=benchmarks .venv/bin/python -m moving.images [--quick]

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moving.site import ROOT, site
from pulsetrain.diagnostics import process_dump

JOB = ROOT / "benchmarks/jobs/moved.py"
CONFIG = '[agent]\nimages = "auto"\n'
NODE, WIDTH, QUICK_WIDTH, STEPS_BETWEEN = "a", 8192, 1024, 10
STATE_BYTES = 12
"""of one parameter: itself and both moments of AdamW, each in float32"""


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure. Nothing where this host cannot dump processes."""
    if lacks := process_dump.lacks():
        print(f"images: left out: {lacks}: run deploy/criu as root", file=sys.stderr)
        return {}
    width, replicas = (QUICK_WIDTH, 2) if quick else (WIDTH, 8)
    images = {}
    for ranks in (1, replicas):
        with tempfile.TemporaryDirectory(prefix="pulsetrain-images-") as folder:
            images[ranks] = _of_job(ranks, width, Path(folder))
    ratio = round(images[replicas]["stored"] / images[1]["stored"], 3)
    return {
        "image_ratio_8": None if quick else ratio,
        "image_ratio": ratio,
        "images": {str(ranks): image for ranks, image in images.items()},
    }


def _of_job(ranks: int, width: int, folder: Path) -> dict[str, Any]:
    record = folder / "record"
    record.mkdir()
    config = folder / "node.toml"
    config.write_text(CONFIG)
    job = [JOB, "--plain", "--width", width, "--steps", 1_000_000, "--record", record]
    with site(folder) as here:
        here.launch(ranks, job, nodes=(NODE,), config=config)
        for _ in range(2):
            first = _step(record, ranks)
            here.until(lambda first=first: _step(record, ranks) >= first + STEPS_BETWEEN, 600)
            here.move("preempt")
            here.until(lambda: here.job().get("state") == "preempted", 600)
            here.move("resume")
            here.until(lambda: here.job().get("state") == "running", 600)
        here.until(lambda: len(here.events("image_restored")) == 2)
        dumps = [json.loads(text) for text in here.events("preempted")]
        restores = [json.loads(text) for text in here.events("image_restored")]
    return summary(width, dumps, restores)


def summary(
    width: int, dumps: Sequence[Mapping[str, Any]], restores: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the events of two moves say, in bytes and seconds."""
    first, second = (dump["image"] for dump in dumps)
    return {
        "raw": first["bytes"],
        "stored": first["stored_bytes"],
        "new": second["new_bytes"],
        "state": STATE_BYTES * width * (width + 1),
        "stages_s": {name: round(ns / 1e9, 2) for name, ns in dumps[0]["stages_ns"].items()},
        "restore_s": [round(restore["restore_ns"] / 1e9, 2) for restore in restores],
        "steps_redone": sum(dump["lost_steps"] for dump in dumps),
    }


def _step(record: Path, ranks: int) -> int:
    """The newest step that all ranks have done, -1 before that."""
    files = list(record.glob("rank-*"))
    done = [[line.split() for line in file.read_text().split("\n")[:-1]] for file in files]
    last = [max((int(words[3]) for words in lines if words[2] == "did"), default=-1) for lines in done]
    return min(last) if len(last) == ranks else -1


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv)))
