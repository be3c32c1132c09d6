"""What people ask a running hub: nodes, alerts, incidents, stacks, evictions."""

from __future__ import annotations

from dataclasses import dataclass

import click

from pulsetrain.cli.names import alert_ids, job_names, node_names
from pulsetrain.cli.numbers import Number
from pulsetrain.cli.options import HubOptions, grouped, hub_options, job_argument, json_option
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.progress import progress
from pulsetrain.protocol.client import HubClient
from pulsetrain.terminal.printable import printable, printable_text


@pulsetrain.command()
@hub_options
@json_option
def nodes(hub: HubOptions, as_json: bool) -> None:
    """List every node that joined: its state, its ranks, its last heartbeat.

    Example: pulsetrain nodes
    """
    rows = hub.client().nodes()
    if as_json:
        print_json(rows)
        return
    columns = (
        "node",
        "job",
        "state",
        "node_rank",
        "ranks",
        "address",
        "last_heartbeat_age_s",
        "reason",
        "cordon",
    )
    print_table(rows, columns, "No node has joined this hub.")


@dataclass(frozen=True, kw_only=True)
class AlertActions:
    """What to do to alerts before they are listed."""

    ack: str | None = None
    note: str = ""
    silence: tuple[str, ...] = ()
    minutes: float = 120.0
    end_silence: str | None = None

    def apply(self, client: HubClient) -> str:
        """Acknowledge, silence and end silences. Returns what a new silence covers, "" for no new one.

        Raises `UsageError` for a malformed --silence.
        """
        told = ""
        silence = self._checked()
        if self.ack is not None:
            client.acknowledge(self.ack, self.note)
        if silence:
            made = client.silence(silence, self.minutes * 60, self.note)
            told = (
                f"Silence {made['id']} covers {made['covers']} active alert(s)." if "covers" in made else ""
            )
        if self.end_silence is not None:
            client.end_silence(self.end_silence)
        return told

    def _checked(self) -> dict[str, str]:
        """What a new silence covers. Raises `UsageError` before anything is done."""
        for option, value in (("--ack", self.ack), ("--end-silence", self.end_silence)):
            if value is not None and not value.strip():
                raise UsageError(f"{option} is empty: give the ID that `pulsetrain alerts` lists")
        if self.note and self.ack is None and not self.silence:
            raise UsageError("--note goes with --ack or --silence; give one of them")
        if self.minutes <= 0:
            raise UsageError(f"--minutes {self.minutes:g}: allowed: above 0")
        return matchers(self.silence)


_alert_actions = grouped(
    "actions",
    AlertActions,
    click.option("--ack", metavar="ID", help="Acknowledge this alert.", shell_complete=alert_ids),
    click.option("--note", default="", metavar="TEXT", help="Note to keep with --ack or --silence."),
    click.option(
        "--silence", multiple=True, metavar="FIELD=VALUE", help="Mute alerts that match. Repeatable."
    ),
    click.option(
        "--minutes",
        type=Number(),
        default=120.0,
        show_default=True,
        metavar="N",
        help="Length of the silence.",
    ),
    click.option("--end-silence", metavar="ID", help="End this silence now."),
)


@pulsetrain.command()
@_alert_actions
@click.option("--silences", "show_silences", is_flag=True, help="List the active silences instead of alerts.")
@hub_options
@json_option
def alerts(actions: AlertActions, show_silences: bool, hub: HubOptions, as_json: bool) -> None:
    """List alerts, newest first. Acknowledge one with --ack, mute some with --silence.

    Example: pulsetrain alerts --ack 3f2a --note "swapping the cable"
    """
    client = hub.client()
    told = actions.apply(client)
    if told and not as_json:
        click.echo(told)
    rows = client.silences() if show_silences else client.alerts()
    if as_json:
        print_json(rows)
    elif show_silences:
        print_table(rows, ("id", "matchers", "covers", "author", "comment", "expires_ns"), "No silence.")
    else:
        columns = ("id", "state", "severity", "kind", "subject", "count", "acknowledged_by", "summary")
        print_table(rows, columns, "No alert.")


def matchers(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return FIELD=VALUE pairs as a dictionary. Raises `UsageError` for a pair without "=".

    >>> matchers(("kind=straggler", "node=node-7"))
    {'kind': 'straggler', 'node': 'node-7'}
    """
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--silence {pair!r}: give FIELD=VALUE, such as kind=straggler")
    return {field: value for field, _, value in (pair.partition("=") for pair in pairs)}


@pulsetrain.command()
@hub_options
@json_option
def incidents(hub: HubOptions, as_json: bool) -> None:
    """List incidents: findings that belong together, their root and their victims.

    Example: pulsetrain incidents --json
    """
    rows = hub.client().incidents()
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("id", "job", "root", "victims", "suggested_action"), "No incident.")


@pulsetrain.command()
@job_argument
@click.option("--last", is_flag=True, help="Show the last stacks that were read instead of new ones.")
@click.option("--threads", is_flag=True, help="Also show threads other than the main one.")
@hub_options
@json_option
def stacks(job: str, last: bool, threads: bool, hub: HubOptions, as_json: bool) -> int:
    """Show where the Python code of every rank of JOB stands, and whose stack differs.

    The exit status is 1 if a stack differs.

    Example: pulsetrain stacks gpt --json
    """
    from pulsetrain.analytics.hangs.stacks import MAIN, lines

    with progress(f"Reading the stacks of {job}"):
        answer = hub.client().stacks(job, fresh=not last)
    if as_json:
        print_json(answer)
    elif not answer:
        click.echo(f"No stacks of {job} have been read.")
    else:
        click.echo(printable(answer["sentence"]))
        for line in lines(t for t in answer["tree"] if threads or t["frame"] == MAIN):
            click.echo(f"  {printable_text(line)}")
        for part in answer["blind"]:
            click.echo(f"  not read: ranks {part['ranks']}: {printable(part['reason'])}")
    return 1 if answer.get("state") == "outlier" else 0


@pulsetrain.command()
@click.argument("node", shell_complete=node_names)
@click.option("--reason", required=True, metavar="TEXT", help="Why. The reason is kept with the eviction.")
@click.option(
    "--job",
    default="",
    metavar="JOB",
    shell_complete=job_names,
    help="The job of the node. It is needed if several jobs have a node of this name.",
)
@click.option("--drain", is_flag=True, help="Drain the node in the cluster's scheduler too.")
@click.option("--dry-run", is_flag=True, help="Only say what the eviction would cost.")
@hub_options
@json_option
def evict(
    node: str, reason: str, job: str, drain: bool, dry_run: bool, hub: HubOptions, as_json: bool
) -> int:
    """Evict NODE from its job. A standby takes its place.

    The exit status of a dry run is 1 if the hub would refuse.

    Example: pulsetrain evict node-b --reason "fan failed" --dry-run
    """
    from pulsetrain.dashboard.models.nodes import plan

    answer = hub.client().evict(node, reason, dry_run=dry_run, drain=drain, job=job)
    status = 0 if answer.get("allowed", True) else 1
    if as_json:
        print_json(answer)
        return status
    verb = "evicting" if not dry_run else "would not evict" if status else "would evict"
    click.echo(f"{verb} {node} ({answer['state']}) of job {printable(answer['job'])}")
    for sentence in plan(answer).sentences:
        click.echo(f"  {printable(sentence)}")
    for asked in answer.get("scheduler", ()):
        click.echo(f"  Asked of the scheduler: {printable(asked)}.")
    return status
