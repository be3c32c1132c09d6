"""Checkpoints in storage: list, verify, export; and how often to save."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from pulsetrain.cli.root import JSON_FLAG, print_json, print_table, pulsetrain


@pulsetrain.group()
def checkpoint() -> None:
    """Checkpoints in storage: list, check, export; and how often to save.

    Example: pulsetrain checkpoint ls --storage /data/checkpoints
    """


def storage_flags(command: Any) -> Any:
    """--storage and --job."""
    command = click.option("--job", metavar="NAME", help="Name of the job; default: the only one there.")(
        command
    )
    return click.option("--storage", required=True, metavar="URL", help="Folder or fsspec URL.")(command)


@checkpoint.command("ls")
@storage_flags
@JSON_FLAG
def checkpoint_ls(storage: str, job: str | None, as_json: bool) -> None:
    """Steps of a job in storage, newest first.

    Example: pulsetrain checkpoint ls --storage /data/checkpoints --job pretrain
    """
    from pulsetrain.checkpoint import browse

    rows = list(browse.steps_to_show(browse.open_job(storage, job)))
    if as_json:
        print_json(rows)
        return
    columns = (
        "step",
        "state",
        "attempt",
        "world",
        "created",
        "logical_bytes",
        "unique_bytes",
        "written_bytes",
    )
    print_table(rows, columns, "No checkpoints.")


@checkpoint.command("verify")
@click.option("--step", type=int, help="Only this step; default: all.")
@storage_flags
@JSON_FLAG
def checkpoint_verify(storage: str, job: str | None, step: int | None, as_json: bool) -> int:
    """Read every byte and compare it with its hash; status 1 where something is wrong.

    Example: pulsetrain checkpoint verify --storage /data/checkpoints --step 1200
    """
    from pulsetrain.checkpoint import browse

    rows = browse.verdicts(browse.open_job(storage, job), step)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(f"step {row['step']}: {'whole' if row['ok'] else '; '.join(row['wrong'])}")
    return int(not all(row["ok"] for row in rows))


@checkpoint.command("export")
@click.option("--step", type=int, help="Which step; default: the newest.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Where to.")
@click.option("--prefix", default="model.", show_default=True, help="Only tensors that begin so, without it.")
@storage_flags
@JSON_FLAG
def checkpoint_export(
    storage: str, job: str | None, step: int | None, out: Path, prefix: str, as_json: bool
) -> None:
    """The model as Hugging Face safetensors, however it was sharded.

    Example: pulsetrain checkpoint export --storage /data/checkpoints --step 1200 -o hf/
    """
    from pulsetrain.checkpoint import browse
    from pulsetrain.checkpoint.export import export_safetensors

    checkpoints = browse.open_job(storage, job)
    manifest = browse.committed_step(checkpoints, step)
    files = export_safetensors(checkpoints, manifest, out, prefix=prefix)
    if as_json:
        print_json({"step": manifest.step, "files": [str(f) for f in files]})
        return
    for file in files:
        click.echo(file)


def advice_flags(command: Any) -> Any:
    """What the advisor asks for."""
    flags: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--step-s", {"type": float, "required": True, "help": "Length of a training step."}),
        ("--stall-s", {"type": float, "default": 0.0, "help": "What training waits for a save."}),
        (
            "--save-s",
            {"type": float, "default": 0.0, "help": "From a save's beginning until it is safe."},
        ),
        ("--recover-s", {"type": float, "default": 60.0, "help": "From a fault to the next step."}),
        ("--detect-s", {"type": float, "default": 0.0, "help": "How long a silent error may stay unseen."}),
        ("--mttf-s", {"type": float, "help": "Mean time between failures of the whole job."}),
        ("--nodes", {"type": int, "default": 1, "help": "Nodes of the job."}),
        ("--failures-per-node-day", {"type": float, "help": "Instead of --mttf-s, with --nodes."}),
    )
    for name, options in reversed(flags):
        command = click.option(name, metavar="N", show_default=True, **options)(command)
    return command


@checkpoint.command("advise")
@advice_flags
@JSON_FLAG
def checkpoint_advise(as_json: bool, **given: Any) -> None:
    """How often to save: the interval that wastes least, why, and what is lost then. Times in seconds.

    Example: pulsetrain checkpoint advise --step-s 12 --stall-s 0.4 --save-s 30 --mttf-s 86400
    """
    from pulsetrain.checkpoint.interval import advise, job_mttf_s

    mttf_s = job_mttf_s(given.pop("mttf_s"), given.pop("failures_per_node_day"), given.pop("nodes"))
    advice = advise(mttf_s=mttf_s, **given)
    if as_json:
        print_json({**dataclasses.asdict(advice), "mttf_s": mttf_s})
        return
    every = "every step" if advice.every_steps == 1 else f"every {advice.every_steps} steps"
    click.echo(f"save {every} ({advice.interval_s:g} s): {advice.reason}")
    click.echo(f"lost to saving, recomputing and recovering: {advice.lost_ratio:.2%} of the time")
