"""The hub, and what people ask of it: status, nodes, alerts, incidents, evictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pulsetrain.cli.interrupts import importing
from pulsetrain.cli.root import (
    JSON_FLAG,
    client_of,
    hub_flags,
    print_json,
    print_table,
    pulsetrain,
)
from pulsetrain.core.errors import UsageError


@pulsetrain.command()
@click.option(
    "--data", metavar="DIR", help="Data folder; default: PULSETRAIN_DATA or ~/.local/share/pulsetrain."
)
@click.option(
    "--config", "file", metavar="FILE", help="TOML file with tables [hub], [controller] and [watch]."
)
@click.option("--host", metavar="IP", help="Address to listen on; default 127.0.0.1.")
@click.option("--port", type=int, help="Port of the API; 0 takes a free one; default 8780.")
@click.option("--dashboard-port", type=int, help="Port of the dashboard; 0 takes a free one; default 8790.")
@click.option("--no-dashboard", is_flag=True, help="Do not start the dashboard.")
@click.option(
    "--token",
    metavar="TOKEN",
    help="Token that clients must send; default: one made and kept in the data folder.",
)
@click.option(
    "--store", metavar="URL", help="ClickHouse server (http(s)://user@host:port/db); default: embedded."
)
@click.option("--kafka", metavar="HOST:PORT,...", help="Take records from these brokers as well.")
@click.option("--observe-only", is_flag=True, default=None, help="Say what would be done, do nothing.")
def serve(
    data: str | None, file: str | None, no_dashboard: bool, observe_only: bool | None, **flags: Any
) -> None:
    """Run the hub: ingest, store, analysis, controller and dashboard.

    Example: pulsetrain serve --data /var/lib/pulsetrain --port 8780
    """
    with importing():
        from pulsetrain.core.log import configure
        from pulsetrain.hub.serve import serve as run_hub
        from pulsetrain.hub.settings import load_settings
        from pulsetrain.protocol.client import data_folder

    configure()
    flags["dashboard"] = False if no_dashboard else None
    settings = load_settings(Path(file) if file else None, flags, {"observe_only": observe_only})
    folder = Path(data).expanduser() if data else data_folder()
    run_hub(folder, settings, lambda line: click.echo(line))


@pulsetrain.command()
@hub_flags
@JSON_FLAG
def status(hub: str | None, token: str | None, as_json: bool) -> None:
    """How each job is, in one sentence.

    Example: pulsetrain status
    """
    report = client_of(hub, token).status()
    if as_json:
        print_json(report)
        return
    if not report["jobs"]:
        click.echo("No job has joined this hub.")
    for job in report["jobs"]:
        click.echo(f"{job['job']}: {job['verdict']['sentence']}")
        rows = [{**node, "dropped": _dropped(node.get("gauges", {}))} for node in job["nodes"]]
        columns = ("node", "state", "node_rank", "ranks", "last_heartbeat_age_s", "dropped", "reason")
        print_table(rows, columns, "")


def _dropped(gauges: Mapping[str, float]) -> str:
    """What a node's agent lost, by reason; "0" where it lost nothing."""
    lost = {n.removeprefix("dropped_"): count for n, count in gauges.items() if n.startswith("dropped_")}
    lost.pop("rows", None)  # the sum of the others
    if gauges.get("ring_dropped"):
        lost["ring_full"] = gauges["ring_dropped"]
    return ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(lost.items())) or "0"


@pulsetrain.command()
@hub_flags
@JSON_FLAG
def nodes(hub: str | None, token: str | None, as_json: bool) -> None:
    """Every node that joined: its state, ranks and last sign of life.

    Example: pulsetrain nodes
    """
    rows = client_of(hub, token).nodes()
    if as_json:
        print_json(rows)
        return
    columns = ("node", "job", "state", "node_rank", "ranks", "address", "last_heartbeat_age_s", "reason")
    print_table(rows, columns, "No node has joined this hub.")


@pulsetrain.command()
@click.option("--ack", metavar="ID", help="Acknowledge this alert.")
@click.option("--note", default="", help="Note for the acknowledgement or silence.")
@click.option("--silence", multiple=True, metavar="FIELD=VALUE", help="Mute what matches; repeatable.")
@click.option("--minutes", type=float, default=120.0, show_default=True, help="How long a silence lasts.")
@click.option("--end-silence", metavar="ID", help="End this silence now.")
@click.option("--silences", "show_silences", is_flag=True, help="The silences in force instead of alerts.")
@hub_flags
@JSON_FLAG
def alerts(
    ack: str | None,
    note: str,
    silence: tuple[str, ...],
    minutes: float,
    end_silence: str | None,
    show_silences: bool,
    hub: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Alerts, newest first; acknowledge one with --ack, mute some with --silence.

    Example: pulsetrain alerts --ack 3f2a --note "swapping the cable"
    """
    client = client_of(hub, token)
    if ack:
        client.acknowledge(ack, note)
    if silence:
        client.silence(_matchers(silence), minutes * 60, note)
    if end_silence:
        client.end_silence(end_silence)
    rows = client.silences() if show_silences else client.alerts()
    if as_json:
        print_json(rows)
    elif show_silences:
        print_table(rows, ("id", "matchers", "author", "comment", "expires_ns"), "No silence.")
    else:
        columns = ("id", "state", "severity", "kind", "subject", "count", "acknowledged_by", "summary")
        print_table(rows, columns, "No alert.")


def _matchers(pairs: tuple[str, ...]) -> dict[str, str]:
    """FIELD=VALUE pairs. Raises `UsageError` for one that is not."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--silence {pair!r}: give FIELD=VALUE, such as kind=straggler")
    return {field: value for field, _, value in (pair.partition("=") for pair in pairs)}


@pulsetrain.command()
@hub_flags
@JSON_FLAG
def incidents(hub: str | None, token: str | None, as_json: bool) -> None:
    """Incidents: findings joined into one story each.

    Example: pulsetrain incidents --json
    """
    rows = client_of(hub, token).incidents()
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("id", "job", "root", "victims", "suggested_action"), "No incident.")


@pulsetrain.command()
@click.argument("job")
@click.option("--last", is_flag=True, help="The last picture that was taken instead of a new one.")
@click.option("--threads", is_flag=True, help="Also threads beside the main one.")
@hub_flags
@JSON_FLAG
def stacks(job: str, last: bool, threads: bool, hub: str | None, token: str | None, as_json: bool) -> int:
    """Where the Python code of every rank of JOB stands now, merged, and whose stack differs.

    Example: pulsetrain stacks gpt --json
    """
    from pulsetrain.analytics.hangs.stacks import MAIN, lines

    answer = client_of(hub, token).stacks(job, fresh=not last)
    if as_json:
        print_json(answer)
    elif not answer:
        click.echo(f"No picture of the stacks of {job} has been taken.")
    else:
        click.echo(answer["sentence"])
        for line in lines(t for t in answer["tree"] if threads or t["frame"] == MAIN):
            click.echo(f"  {line}")
        for part in answer["blind"]:
            click.echo(f"  not read: ranks {part['ranks']}: {part['reason']}")
    return 1 if answer.get("state") == "outlier" else 0


@pulsetrain.command()
@click.argument("node")
@click.option("--reason", required=True, help="Why; kept with the eviction.")
@click.option("--dry-run", is_flag=True, help="Only say what it would cost.")
@hub_flags
@JSON_FLAG
def evict(node: str, reason: str, dry_run: bool, hub: str | None, token: str | None, as_json: bool) -> None:
    """Evict NODE from its job; a standby takes its place.

    Example: pulsetrain evict node-b --reason "fan failed" --dry-run
    """
    answer = client_of(hub, token).evict(node, reason, dry_run=dry_run)
    if as_json:
        print_json(answer)
        return
    click.echo(
        f"{'would evict' if dry_run else 'evicting'} {node} ({answer['state']}) of job {answer['job']}"
    )
    for label, key in (
        ("ranks", "ranks"),
        ("standby that takes over", "standby"),
        ("resume from step", "resume_step"),
        ("steps lost", "lost_steps"),
        ("seconds to resume, from past recoveries", "expected_s"),
        ("caution", "why_not"),
    ):
        if answer[key] not in ("", None, []):
            click.echo(f"  {label}: {answer[key]}")
