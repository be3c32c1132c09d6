"""Checkpoints in storage: list, verify, export. And how often to save."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsetrain.cli.numbers import Number
from pulsetrain.cli.options import grouped, json_option
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.progress import progress

if TYPE_CHECKING:
    from pulsetrain.checkpoint.storage.manifest import Checkpoints


@pulsetrain.group()
def checkpoint() -> None:
    """List, verify and export checkpoints, and advise how often to save.

    Example: pulsetrain checkpoint ls --storage /data/checkpoints
    """


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Whose checkpoints, and where they are stored."""

    storage: str
    job: str | None

    def open(self) -> Checkpoints:
        """Return the job's checkpoints. Raises `UsageError` where there are none."""
        from pulsetrain.checkpoint import browse

        return browse.open_job(self.storage, self.job)


_storage_options = grouped(
    "source",
    StorageOptions,
    click.option("--storage", required=True, metavar="URL", help="Folder or fsspec URL of the checkpoints."),
    click.option("--job", metavar="NAME", help="Name of the job. Default: the only one there."),
)


@checkpoint.command("ls")
@_storage_options
@json_option
def checkpoint_ls(source: StorageOptions, as_json: bool) -> None:
    """List the stored steps of a job, newest first.

    Example: pulsetrain checkpoint ls --storage /data/checkpoints --job pretrain
    """
    from pulsetrain.checkpoint import browse

    rows = browse.steps_to_show(source.open())
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
@click.option("--step", type=int, metavar="N", help="Verify only this step. Default: all.")
@_storage_options
@json_option
def checkpoint_verify(source: StorageOptions, step: int | None, as_json: bool) -> int:
    """Read every byte and compare it with its hash.

    The exit status is 1 if anything is damaged. A step that is still being written counts only with --step.

    Example: pulsetrain checkpoint verify --storage /data/checkpoints --step 1200
    """
    from pulsetrain.checkpoint import browse

    with progress("Verifying", unit="bytes") as report:
        rows = browse.verdicts(source.open(), step, report)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(
                f"step {row['step']}: {'whole' if row['ok'] else '; '.join(row['wrong']) or row['why']}"
            )
    return int(any(row["ok"] is False for row in rows))


@checkpoint.command("export")
@click.option("--step", type=int, metavar="N", help="Export this step. Default: the newest.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write to."
)
@click.option(
    "--prefix",
    default="model.",
    show_default=True,
    metavar="TEXT",
    help="Export only tensors whose names begin with TEXT, and drop it from the names.",
)
@click.option(
    "--may-differ",
    multiple=True,
    metavar="TEXT",
    help="Take the first rank's part of tensors whose names begin with TEXT where ranks have saved different "
    "values. Repeatable.",
)
@_storage_options
@json_option
def checkpoint_export(
    source: StorageOptions,
    step: int | None,
    out: Path,
    prefix: str,
    may_differ: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the model as Hugging Face safetensors, however it was sharded.

    Example: pulsetrain checkpoint export --storage /data/checkpoints --step 1200 -o hf/
    """
    from pulsetrain.checkpoint import browse
    from pulsetrain.checkpoint.export import export_safetensors

    checkpoints = source.open()
    manifest = browse.committed_step(checkpoints, step)
    with progress(f"Exporting step {manifest.step}", unit="bytes") as report:
        files = export_safetensors(
            checkpoints, manifest, out, prefix=prefix, may_differ=may_differ, report=report
        )
    if as_json:
        print_json({"step": manifest.step, "files": [str(f) for f in files]})
        return
    for file in files:
        click.echo(file)


@dataclass(frozen=True, kw_only=True)
class SavingCosts:
    """What the advisor needs to know. Times are in seconds."""

    step_s: float
    stall_s: float
    save_s: float
    recover_s: float
    detect_s: float


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """How often the job fails: its own mean time to failure, or the rate of each of its nodes."""

    mttf_s: float | None
    nodes: int
    failures_per_node_day: float | None


_cost_options = grouped(
    "costs",
    SavingCosts,
    click.option("--step-s", type=Number(), required=True, metavar="S", help="Length of a training step."),
    click.option(
        "--stall-s", type=Number(), default=0.0, metavar="S", help="What training waits for a save."
    ),
    click.option(
        "--save-s", type=Number(), default=0.0, metavar="S", help="From the start of a save until it is safe."
    ),
    click.option(
        "--recover-s",
        type=Number(),
        default=60.0,
        show_default=True,
        metavar="S",
        help="From a fault to the next step.",
    ),
    click.option(
        "--detect-s", type=Number(), default=0.0, metavar="S", help="How long a silent error may stay unseen."
    ),
)
_rate_options = grouped(
    "rate",
    FailureRate,
    click.option("--mttf-s", type=Number(), metavar="S", help="Mean time between failures of the whole job."),
    click.option("--nodes", type=int, default=1, show_default=True, metavar="N", help="Nodes of the job."),
    click.option(
        "--failures-per-node-day",
        type=Number(),
        metavar="X",
        help="Failures of one node in a day.",
    ),
)


@checkpoint.command("advise")
@_cost_options
@_rate_options
@json_option
def checkpoint_advise(costs: SavingCosts, rate: FailureRate, as_json: bool) -> None:
    """Advise how often to save, and say what is lost at that interval.

    All times are in seconds.

    Example: pulsetrain checkpoint advise --step-s 12 --stall-s 0.4 --save-s 30 --mttf-s 86400
    """
    from pulsetrain.checkpoint.interval import advise, job_mttf_s

    mttf_s = job_mttf_s(rate.mttf_s, rate.failures_per_node_day, rate.nodes)
    advice = advise(mttf_s=mttf_s, **dataclasses.asdict(costs))
    if as_json:
        print_json({**dataclasses.asdict(advice), "mttf_s": mttf_s})
        return
    every = "every step" if advice.every_steps == 1 else f"every {advice.every_steps} steps"
    click.echo(f"save {every} ({advice.interval_s:g} s): {advice.reason}")
    click.echo(f"lost to saving, recomputing and recovering: {advice.lost_ratio:.2%} of the time")
