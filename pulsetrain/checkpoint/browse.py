"""What `pulsetrain checkpoint` shows of a storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import MANIFEST, Checkpoints, Manifest, folder_of
from pulsetrain.core.errors import CorruptData, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.progress import Report, after, unseen


def jobs(storage: str) -> list[str]:
    """Jobs with checkpoints in a storage."""
    opened = open_storage(storage)
    return [name for name in opened.list("") if Checkpoints(opened, name).steps()]


def open_job(storage: str, job: str | None) -> Checkpoints:
    """The job's checkpoints; without a name, those of the only job. Raises `UsageError`."""
    if job is not None and Checkpoints(open_storage(storage), job).steps():  # also of a name such as team/exp
        return Checkpoints(open_storage(storage), job)
    present = jobs(storage)
    if job is None and len(present) == 1:
        job = present[0]
    if job is None and present:
        raise UsageError(f"{storage} has several jobs: give --job with one of {', '.join(present)}")
    if job is None:
        raise UsageError(f"{storage}: no checkpoints")
    if job not in present:
        raise UsageError(
            f"{storage}: no checkpoints of job {job}; jobs there: {', '.join(present) or 'none'}"
        )
    return Checkpoints(open_storage(storage), job)


def steps_to_show(checkpoints: Checkpoints) -> list[JsonObject]:
    """One row for each step, newest first. Its `state` is committed, kept, incomplete or damaged.

    A kept step is no checkpoint any more. Its packs stay for the committed steps in `kept_for`.
    """
    rows: list[JsonObject] = []
    needed_by: dict[str, list[int]] = {}
    for step in reversed(checkpoints.steps()):
        row: JsonObject = {"job": checkpoints.job, "step": step}
        try:
            manifest = checkpoints.manifest(step)
        except CorruptData as error:
            rows.append({**row, "state": "damaged", "why": str(error)})
            continue
        rows.append({**row, **(_committed(manifest) if manifest else {})})
        for folder in {file.partition("/")[0] for file in manifest.files} if manifest else ():
            needed_by.setdefault(folder, []).append(step)
    for row in rows:
        if "state" not in row:
            row.update(_without_manifest(checkpoints, row["step"], needed_by))
    return rows


def _committed(manifest: Manifest) -> JsonObject:
    return {
        "state": "committed",
        "attempt": manifest.attempt,
        "world": manifest.world,
        "created": datetime.fromtimestamp(manifest.created_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "logical_bytes": manifest.logical_bytes,
        "unique_bytes": manifest.unique_bytes,
        "written_bytes": manifest.written_bytes,
    }


def _without_manifest(
    checkpoints: Checkpoints, step: int, needed_by: Mapping[str, Sequence[int]]
) -> JsonObject:
    folder = folder_of(step)
    if steps := sorted(needed_by.get(folder, ())):
        why = f"no checkpoint any more; its packs are kept for {', '.join(map(str, steps))}"
        return {"state": "kept", "kept_for": steps, "why": why}
    files = checkpoints.storage.list(checkpoints.path(folder))
    return {"state": "incomplete", "why": f"{len(files)} files, no {MANIFEST}"}


def verdicts(checkpoints: Checkpoints, step: int | None, report: Report = unseen) -> list[JsonObject]:
    """Whether every byte of each step, or of `step`, is there and has its hash.

    `ok` is None for what is no checkpoint: a step that is kept for others, that is not committed yet, or that
    retention removes meanwhile (its state is "removed"). Where `step` names one of the first two, that is
    wrong.
    `report` takes the bytes that were read, of the bytes of all these steps.
    Raises `UsageError` for a step that does not exist.
    """
    steps = checkpoints.steps()
    if step is not None and step not in steps:
        have = ", ".join(map(str, steps)) or "none"
        raise UsageError(f"job {checkpoints.job} has no step {step}; it has: {have}")
    rows = [r for r in steps_to_show(checkpoints) if step in (None, r["step"])]
    done, total = 0, sum(row.get("unique_bytes", 0) for row in rows)
    report(done, total)
    for row in rows:
        if row["state"] == "committed":
            _verify(checkpoints, row, after(report, done))
        else:
            wrong = row["state"] == "damaged" or step is not None
            row["wrong"], row["ok"] = [row["why"]] if wrong else [], False if wrong else None
        done += row.get("unique_bytes", 0)
    return rows


def _verify(checkpoints: Checkpoints, row: JsonObject, report: Report) -> None:
    """Put into the row of a committed step what is wrong with its bytes."""
    try:
        manifest = checkpoints.manifest(row["step"])
        wrong = checkpoints.verify(manifest, report) if manifest else []
    except CorruptData as error:
        row["wrong"], row["ok"] = [str(error)], False
        return
    if manifest is None or (wrong and not checkpoints.kept([manifest])):
        row.update(state="removed", why="removed meanwhile", wrong=[], ok=None)
    else:
        row["wrong"], row["ok"] = wrong, not wrong


def committed_step(checkpoints: Checkpoints, step: int | None) -> Manifest:
    """The manifest of that step, or of the newest. Raises `UsageError` where it is not committed."""
    committed = checkpoints.committed()
    wanted = next((m for m in committed if step in (None, m.step)), None)
    if wanted is None:
        have = ", ".join(str(m.step) for m in committed) or "none"
        raise UsageError(f"job {checkpoints.job}: step {step} is not committed; committed: {have}")
    return wanted
