"""Whether every restore was right, and every sample was used once. Pure, but for reading the record."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from pulsetrain.elastic import ElasticSampler

Row = dict[str, Any]


class Verdict(TypedDict):
    """`wrong` restores, each in words. Samples are counted over the steps that the last attempt rests on."""

    restores: int
    wrong: list[str]
    samples_lost: int
    samples_doubled: int
    steps: int


def read(folder: Path) -> dict[int, list[Row]]:
    """The lines of all ranks, by attempt. A line that was cut off does not count."""
    rows: dict[int, list[Row]] = defaultdict(list)
    for file in sorted(folder.glob("attempt-*.jsonl")):
        attempt = int(re.match(r"attempt-(\d+)-", file.name)[1])  # type: ignore[index]
        for line in file.read_text().splitlines():
            try:
                rows[attempt].append(json.loads(line))
            except ValueError:
                continue
    return rows


def judge(rows: dict[int, list[Row]], *, samples: int, batch: int) -> Verdict:
    """Compare each restore with what was saved, and the samples with those of an undisturbed run."""
    wrong: list[str] = []
    restores = 0
    for attempt in sorted(rows):
        restored = [row for row in rows[attempt] if "restored" in row]
        if not restored:
            if attempt and any(done_by(rows, before) for before in rows if before < attempt):
                wrong += [f"attempt {attempt} began anew"] if done_by(rows, attempt) else []
            continue
        restores += 1
        wrong += _differences(attempt, restored, rows)
    used = _samples(rows)
    expected = _expected(max(used, default=-1) + 1, samples=samples, batch=batch)
    counts = [(Counter(used.get(step, ())), Counter(ids)) for step, ids in expected.items()]
    return {
        "restores": restores,
        "wrong": wrong,
        "samples_lost": sum((should - did).total() for did, should in counts),
        "samples_doubled": sum((did - should).total() for did, should in counts),
        "steps": len(expected),
    }


def done_by(rows: dict[int, list[Row]], attempt: int) -> set[int]:
    """The steps that some rank of an attempt has done. All samples were on record before."""
    return {row["step"] for row in rows[attempt] if "step" in row and "digests" in row}


def _differences(attempt: int, restored: Iterable[Row], rows: dict[int, list[Row]]) -> list[str]:
    """What was restored otherwise than some earlier attempt has saved it."""
    steps = {row["restored"] for row in restored}
    if len(steps) != 1:
        return [f"attempt {attempt}: ranks have restored different steps {sorted(steps)}"]
    (step,) = steps
    got = {name: digest for row in restored for name, digest in row["digests"].items()}
    for before in sorted((a for a in rows if a < attempt), reverse=True):
        saved: dict[str, str] = {}
        for row in rows[before]:
            if row.get("step") == step:
                saved |= row.get("digests", {})
        if (
            saved
            and all(saved.get(name) == digest for name, digest in got.items())
            and len(saved) == len(got)
        ):
            return []
    return [f"attempt {attempt}: step {step} is not as any attempt has saved it"]


def _samples(rows: dict[int, list[Row]]) -> dict[int, list[int]]:
    """The samples of each step that the newest state rests on, by the attempt that did it last."""
    used: dict[int, list[int]] = {}
    for attempt in sorted(rows):
        done = done_by(rows, attempt)
        if not done:
            continue
        used = {step: ids for step, ids in used.items() if step < min(done)}
        for row in rows[attempt]:
            if row.get("step") in done:
                used.setdefault(row["step"], []).extend(row["ids"])
    return used


def _expected(steps: int, *, samples: int, batch: int) -> dict[int, list[int]]:
    """The samples of each step as one rank alone would use them."""
    sampler, found = ElasticSampler(samples, batch=batch, rank=0, world=1), {}
    while len(found) < steps:
        for share in sampler:
            found[len(found)] = [index for micro in share.microbatches for index in micro]
            sampler.advance(share)
            if len(found) == steps:
                break
    return found
