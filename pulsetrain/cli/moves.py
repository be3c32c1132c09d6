"""Stopping a job for a while, letting it go on, taking it off a node, and changing its devices."""

from __future__ import annotations

from dataclasses import dataclass

import click

from pulsetrain.cli.names import node_names
from pulsetrain.cli.numbers import NumberRange
from pulsetrain.cli.options import HubOptions, grouped, hub_options, job_argument, json_option, node_list
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.moves import dump_sentence, resize_sentence
from pulsetrain.dashboard.models.time_use import price_sentence
from pulsetrain.terminal.printable import printable


@dataclass(frozen=True, kw_only=True)
class MoveOptions:
    """Why, and whether it is done."""

    reason: str
    dry_run: bool = False


_move_options = grouped(
    "move",
    MoveOptions,
    click.option("--reason", required=True, metavar="TEXT", help="Why. The reason is kept with the move."),
    click.option("--dry-run", is_flag=True, help="Only say what it would cost."),
)
_wait_option = click.option(
    "--wait",
    "wait_s",
    type=NumberRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a checkpoint that is newer than this request.",
)


@pulsetrain.command()
@job_argument
@_wait_option
@click.option("--lose-progress", is_flag=True, help="Also where the job has no checkpoint to go on from.")
@_move_options
@hub_options
@json_option
def preempt(
    job: str, wait_s: float, lose_progress: bool, move: MoveOptions, hub: HubOptions, as_json: bool
) -> int:
    """Stop JOB at a saved step. Its agents stay, and its devices are free.

    Example: pulsetrain preempt gpt --reason "the cluster is needed until noon"
    """
    client = hub.client()
    answer = client.move(
        job, "preempt", move.reason, wait_s=wait_s, lose_progress=lose_progress, dry_run=move.dry_run
    )
    return _show(answer, as_json)


@pulsetrain.command()
@job_argument
@click.option(
    "--nodes",
    callback=node_list,
    metavar="NODE,NODE,...",
    help="Go on on these nodes, by default on those that it has.",
)
@click.option(
    "--lose-progress", is_flag=True, help="Also where its processes cannot be restored and it begins anew."
)
@_move_options
@hub_options
@json_option
def resume(
    job: str,
    nodes: tuple[str, ...],
    lose_progress: bool,
    move: MoveOptions,
    hub: HubOptions,
    as_json: bool,
) -> int:
    """Let JOB go on after a pre-emption, from its newest checkpoint.

    It also takes back a pre-emption or migration that still waits for a checkpoint.

    Example: pulsetrain resume gpt --reason "the cluster is free again"

    Example: pulsetrain resume gpt --nodes node-c,node-d --reason "the rack is free"
    """
    client = hub.client()
    answer = client.move(
        job, "resume", move.reason, nodes=nodes, lose_progress=lose_progress, dry_run=move.dry_run
    )
    return _show(answer, as_json)


@pulsetrain.command()
@job_argument
@click.option(
    "--from", "node", required=True, metavar="NODE", help="Node to leave.", shell_complete=node_names
)
@_wait_option
@_move_options
@hub_options
@json_option
def migrate(job: str, node: str, wait_s: float, move: MoveOptions, hub: HubOptions, as_json: bool) -> int:
    """Take JOB off a node at a saved step. A standby takes the node's place.

    Example: pulsetrain migrate gpt --from node-b --reason "kernel update"
    """
    client = hub.client()
    return _show(
        client.move(job, "migrate", move.reason, node=node, wait_s=wait_s, dry_run=move.dry_run), as_json
    )


@pulsetrain.command()
@job_argument
@click.option(
    "--devices", required=True, type=click.IntRange(1), metavar="N", help="Devices that the job is to use."
)
@_move_options
@hub_options
@json_option
def resize(job: str, devices: int, move: MoveOptions, hub: HubOptions, as_json: bool) -> int:
    """Let JOB use N devices, while it runs.

    A job of --nnodes MIN:MAX uses fewer or more nodes, where its state allows that. Else its ranks take turns
    on fewer devices, and their number stays.

    Example: pulsetrain resize gpt --devices 4 --reason "half of them until noon"
    """
    client = hub.client()
    return _show(client.move(job, "resize", move.reason, devices=devices, dry_run=move.dry_run), as_json)


def _show(answer: JsonObject, as_json: bool) -> int:
    """Print an answer. Returns the exit status: 1 where a dry run says that it cannot be done."""
    if as_json:
        print_json(answer)
    else:
        click.echo(printable(sentence(answer)))
    return 1 if answer["why_not"] else 0


def sentence(answer: JsonObject) -> str:
    """Return what is done about a job, or would be, in one line.

    >>> cost = {"step": 120, "resume_step": 118, "lost_steps": 2, "standby": None, "node": "", "why_not": ""}
    >>> sentence({"job": "gpt", "what": "preempt", "dry_run": True, **cost})
    'gpt would be pre-empted. At once it would resume from step 118 and do 2 steps again.'
    """
    job, what = answer["job"], answer["what"]
    if answer["why_not"]:
        return f"{job}: cannot be done: {answer['why_not']}"
    if what == "resume":
        on = f" on {', '.join(nodes)}" if (nodes := answer.get("on_nodes")) else ""
        once = " once the pool has devices for it" if answer.get("waits_for") == "pool" else ""
        return f"{job}: {'would go on' if answer['dry_run'] else 'goes on'}{on}{once}."
    if what == "resize":
        return resize_sentence(answer)
    off = f" off {answer['node']}" if answer["node"] else ""
    after = f" {answer['standby']} takes over." if answer["node"] else ""
    done = f"{_DONE[what]}{off}"
    dump = dump_sentence(answer)
    if what == "preempt" and answer.get("process_dump") == "":
        return f"{job} {'would' if answer['dry_run'] else 'will'} be {done}. {dump}"
    if not answer["dry_run"]:
        why_no_dump = f" {dump}" if what == "preempt" and dump else ""
        return f"{job} will be {done} once a newer checkpoint is there.{after}{why_no_dump}"
    resume_step = answer["resume_step"]
    start = f"resume from step {resume_step}" if resume_step >= 0 else "begin anew"
    lost = answer["lost_steps"]
    would = f"{job} would be {done}.{after} At once it would {start} and do {lost} steps again."
    return " ".join(part for part in (would, price_sentence(answer), dump) if part)


_DONE = {"preempt": "pre-empted", "migrate": "taken"}
