"""The command line: one function for each command, which parses, calls and prints.

Heavy imports (torch, chDB, Streamlit) happen inside the commands that need them, so that each starts fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pulsetrain import __version__
from pulsetrain.recovery.flags import CONTEXT as LAUNCH_CONTEXT
from pulsetrain.recovery.flags import launch_flags
from pulsetrain.stream.errors import PulsetrainError, UsageError

JSON_FLAG = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, no_args_is_help=True
)
@click.version_option(__version__, prog_name="pulsetrain")
def pulsetrain() -> None:
    """Watch a training job, name the fault, heal it."""


def print_json(value: Any) -> None:
    """`value` as one JSON document on standard output."""
    click.echo(json.dumps(value, default=str))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
    """`rows` as aligned columns for people; `empty` is the sentence for no rows."""
    if not rows:
        click.echo(empty)
        return
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(columns, *cells, strict=True)]
    for line in (list(columns), *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


HUB_FLAGS = (
    click.option(
        "--hub", metavar="URL", help="The hub; default: PULSETRAIN_HUB, else the one in the data folder."
    ),
    click.option(
        "--token", metavar="TOKEN", help="Its token; default: PULSETRAIN_TOKEN, else the data folder's."
    ),
)


def hub_flags(command: Any) -> Any:
    """The options of every command that talks to a hub."""
    for flag in reversed(HUB_FLAGS):
        command = flag(command)
    return command


def _client(hub: str | None, token: str | None) -> Any:
    from pulsetrain.stream.client import HubClient, find_hub

    return HubClient(find_hub(hub, token))


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
    with _importing():
        from pulsetrain.hub.serve import serve as run_hub
        from pulsetrain.hub.settings import load_settings
        from pulsetrain.stream.client import data_folder
        from pulsetrain.stream.log import configure

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
    report = _client(hub, token).status()
    if as_json:
        print_json(report)
        return
    if not report["jobs"]:
        click.echo("No job has joined this hub.")
    for job in report["jobs"]:
        click.echo(f"{job['job']}: {job['verdict']['sentence']}")
        print_table(
            job["nodes"], ("node", "state", "node_rank", "ranks", "last_heartbeat_age_s", "reason"), ""
        )


@pulsetrain.command()
@hub_flags
@JSON_FLAG
def nodes(hub: str | None, token: str | None, as_json: bool) -> None:
    """Every node that joined: its state, ranks and last sign of life.

    Example: pulsetrain nodes
    """
    rows = _client(hub, token).nodes()
    if as_json:
        print_json(rows)
        return
    columns = ("node", "job", "state", "node_rank", "ranks", "address", "last_heartbeat_age_s", "reason")
    print_table(rows, columns, "No node has joined this hub.")


@pulsetrain.command()
@click.option("--ack", metavar="ID", help="Acknowledge this alert.")
@click.option("--note", default="", help="Note for the acknowledgement.")
@hub_flags
@JSON_FLAG
def alerts(ack: str | None, note: str, hub: str | None, token: str | None, as_json: bool) -> None:
    """Alerts, newest first; acknowledge one with --ack.

    Example: pulsetrain alerts --ack 3f2a --note "swapping the cable"
    """
    client = _client(hub, token)
    if ack:
        client.acknowledge(ack, note)
    rows = client.alerts()
    if as_json:
        print_json(rows)
        return
    columns = ("id", "state", "severity", "kind", "subject", "count", "acknowledged_by", "summary")
    print_table(rows, columns, "No alert.")


@pulsetrain.command()
@hub_flags
@JSON_FLAG
def incidents(hub: str | None, token: str | None, as_json: bool) -> None:
    """Incidents: findings joined into one story each.

    Example: pulsetrain incidents --json
    """
    rows = _client(hub, token).incidents()
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("id", "job", "root", "victims", "suggested_action"), "No incident.")


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
    answer = _client(hub, token).evict(node, reason, dry_run=dry_run)
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


@pulsetrain.command()
@click.argument("trace", type=click.Path(path_type=Path))
@JSON_FLAG
def whatif(trace: Path, as_json: bool) -> None:
    """How fast the job would be without its stragglers, from a Parquet TRACE of one row for each operation.

    Example: pulsetrain whatif trace.parquet --json
    """
    from pulsetrain.analytics.whatif import analyze_file, sentences

    answer = analyze_file(trace)
    if as_json:
        print_json(answer)
        return
    for sentence in sentences(answer):
        click.echo(sentence)


@pulsetrain.command()
@click.argument("folder", type=click.Path(path_type=Path))
@JSON_FLAG
def logs(folder: Path, as_json: bool) -> None:
    """Whose log differs from its peers', and who is likely to blame; FOLDER holds one file a rank or node.

    Example: pulsetrain logs /var/log/job-7 --json
    """
    from pulsetrain.analytics.logs import read_folder

    answer = read_folder(folder)
    if as_json:
        print_json(answer)
        return
    rows = [{**f, **f["blame"]["shares"], "why": ", ".join(f["blame"]["reasons"])} for f in answer["files"]]
    print_table(rows, ("file", "lines", "infrastructure", "framework", "user", "why"), "No file.")
    for finding in answer["findings"]:
        click.echo(f"{finding['severity']}: {finding['summary']} (confidence {finding['confidence']:.2f})")


@pulsetrain.command()
@click.argument("folder", type=click.Path(path_type=Path), default="/sys/class/infiniband")
@click.option("--seconds", type=float, default=0.0, help="Sample the traffic for so long, every millisecond.")
@JSON_FLAG
def rdma(folder: Path, seconds: float, as_json: bool) -> None:
    """The RDMA ports of this machine, or of a copy of /sys/class/infiniband: state, rate, counters, traffic.

    Example: pulsetrain rdma --seconds 1
    """
    from pulsetrain.analytics.network_ports import measure
    from pulsetrain.collectors.rdma import describe

    ports = describe(folder)
    if not ports:
        raise UsageError(f"no RDMA port under {folder}")
    if seconds > 0:
        from pulsetrain.collectors.rdma import Burst

        ports = measure(ports, Burst(folder).run(seconds=seconds))
    if as_json:
        print_json(ports)
        return
    for port in ports:
        blind = [name for name, c in port["counters"].items() if c["saturated"]]
        port["saturated"] = ", ".join(blind)
    print_table(ports, ("device", "state", "link_layer", "rate_bits_per_s", "saturated"), "No port.")


@pulsetrain.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--node", default="", help="Name of the machine whose log it is.")
@click.option(
    "--policies", type=click.Path(path_type=Path, file_okay=False), help="Folder of a site's own tables."
)
@click.option("--check", is_flag=True, help="Exit with status 1 where a finding asks for action.")
@JSON_FLAG
def kmsg(file: Path, node: str, policies: Path | None, check: bool, as_json: bool) -> int:
    """What a kernel log says of GPUs and the machine: dmesg, journalctl -k or /dev/kmsg text; - reads a pipe.

    Example: dmesg -T | pulsetrain kmsg - --node node-7 --json
    """
    from pulsetrain.analytics import hardware, report
    from pulsetrain.analytics.policies import load

    answer = hardware.read_file(file, node=node, policies=load(policies))
    if as_json:
        print_json(report.rows(answer))
    else:
        for line in report.lines(answer, everything=True):
            click.echo(line)
    return report.status(answer) if check else 0


@pulsetrain.command()
@click.argument("file", type=click.Path(path_type=Path))
@JSON_FLAG
def failslow(file: Path, as_json: bool) -> None:
    """Which worker, or the whole job, was slower than it used to be, from a table of step times.

    Example: pulsetrain failslow steps.csv --json
    """
    from pulsetrain.analytics import fail_slow, report

    answer = fail_slow.find(fail_slow.read(file))
    if as_json:
        print_json(report.rows(answer))
        return
    for line in report.lines(answer, everything=True):
        click.echo(line)


@pulsetrain.group()
def trace() -> None:
    """Timelines for other tools. Example: pulsetrain trace export --job gpt --steps 40:45 -o gpt.json"""


@trace.command("export")
@click.option("--job", required=True, help="Name of the job.")
@click.option("--steps", required=True, metavar="A:B", help="First and last step, as 40:45, or one step.")
@click.option("--ranks", default="", metavar="LIST", help="Ranks, as 0-3,7; default: all.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File to write."
)
@click.option("--store", metavar="URL", help="chdb:///folder or http(s)://host:port; default: the hub's.")
@hub_flags
@JSON_FLAG
def trace_export(
    job: str,
    steps: str,
    ranks: str,
    output: Path,
    store: str | None,
    hub: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Write the spans of some steps as a trace that ui.perfetto.dev opens.

    Example: pulsetrain trace export --job gpt --steps 40:45 -o gpt.json
    """
    from pulsetrain.analytics import trace_export as traces
    from pulsetrain.analytics.selection import parse_ranks, parse_steps
    from pulsetrain.stream.client import find_hub
    from pulsetrain.stream.store import open_store

    chosen, wanted = parse_steps(steps), parse_ranks(ranks, limit=1 << 20)
    if chosen is None:
        raise UsageError("--steps is empty: give FIRST:LAST, such as 40:45")
    if store is None:
        found = find_hub(hub, token)
        store, token = found.url, found.token
    opened = open_store(store, token=token)
    try:
        written = traces.export_file(opened, job, output, first=chosen[0], last=chosen[1], ranks=wanted)
    finally:
        opened.close()
    if as_json:
        print_json({"file": str(output), "bytes": written, "job": job, "steps": list(chosen)})
    else:
        click.echo(f"{output}: {written:,} bytes; open it at ui.perfetto.dev")


@pulsetrain.command()
@click.option("--job", required=True, help="Name of the job.")
@click.option("--since", type=int, metavar="STEP", help="First step; default: the attempt's first.")
@click.option("--until", type=int, metavar="STEP", help="Last step; default: the newest.")
@click.option("--attempt", type=int, help="Launch of the job, from 0; default: the newest with these steps.")
@click.option("--store", metavar="URL", help="chdb:///folder or http(s)://host:port; default: the hub's.")
@click.option("--verdicts", is_flag=True, help="Also what found nothing, could not tell, or is blind.")
@hub_flags
@JSON_FLAG
def analyze(
    job: str,
    since: int | None,
    until: int | None,
    attempt: int | None,
    store: str | None,
    verdicts: bool,
    hub: str | None,
    token: str | None,
    as_json: bool,
) -> int:
    """What the analyzers find in the stored steps of a job; exit status 1 where something asks for action.

    Example: pulsetrain analyze --job gpt --since 100 --until 300 --json
    """
    from pulsetrain.analytics import report
    from pulsetrain.stream.client import find_hub
    from pulsetrain.stream.store import open_store

    if store is None:
        found = find_hub(hub, token)
        store, token = found.url, found.token
    opened = open_store(store, token=token)
    try:
        answer = report.on_store(opened, job, since=since, until=until, attempt=attempt)
    finally:
        opened.close()
    if as_json:
        print_json(report.states(answer) if verdicts else report.rows(answer))
    else:
        for line in report.lines(answer, everything=verdicts):
            click.echo(line)
    return report.status(answer)


@pulsetrain.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@JSON_FLAG
def hang(folder: Path, as_json: bool) -> int:
    """Which ranks hold a hung job up, from PyTorch Flight Recorder dumps alone: one file a rank in DIR.

    Exit status 1 where somebody is to blame. Example: pulsetrain hang /tmp/nccl_trace --json
    """
    from pulsetrain.analytics.flight_recorder import sentences, verdict

    answer = verdict(folder)
    if as_json:
        print_json(answer)
    else:
        for sentence in sentences(answer):
            click.echo(sentence)
    return int(answer["verdict"] in ("rank", "network", "desync"))


@pulsetrain.command()
@click.option(
    "--seconds", type=float, default=1.0, show_default=True, help="About how long, besides starting."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@JSON_FLAG
def diagnose(seconds: float, device: str, as_json: bool) -> int:
    """Check this machine's arithmetic, speed, memory, loopback and collectives.

    Example: pulsetrain diagnose --seconds 5
    """
    from pulsetrain.diagnostics import suite

    report = suite.run(seconds=seconds, device=device)
    if as_json:
        print_json(report)
    else:
        print_table(suite.rows_for_people(report), ("check", "result", "value", "limit", "detail"), "")
    return 0 if report["ok"] else 1


@pulsetrain.command(context_settings=LAUNCH_CONTEXT)
@launch_flags
@JSON_FLAG
def run(as_json: bool, **flags: Any) -> None:
    """Run SCRIPT under the agent, as torchrun would; without a known hub, with a hub of its own.

    Example: pulsetrain run --nproc-per-node 8 train.py --steps 1000
    """
    _launch(flags, as_json=as_json, needs_hub=False, level="warning")


@pulsetrain.command(context_settings=LAUNCH_CONTEXT)
@launch_flags
@click.option("--standby", is_flag=True, help="Wait until another node fails, even while the job forms.")
@JSON_FLAG
def agent(as_json: bool, standby: bool, **flags: Any) -> None:
    """Run this node's agent for a job of a hub; further nodes than --nnodes wait as standbys.

    Example: pulsetrain agent --hub http://head:8780 --nnodes 4 --nproc-per-node 8 train.py
    """
    _launch(flags, as_json=as_json, needs_hub=True, level="info", standby=standby)


def _launch(flags: Mapping[str, Any], *, as_json: bool, level: Any, **more: Any) -> None:
    with _importing():
        from pulsetrain.recovery import farewell
        from pulsetrain.recovery import flags as launching
        from pulsetrain.recovery.launch import launch
        from pulsetrain.stream.log import configure

    def say(line: str) -> None:
        click.echo(f"pulsetrain: {line}", err=True)

    configure(level=level)
    outcome = launch(launching.asked(flags, say, **more), say)
    if as_json:
        print_json(farewell.report(outcome))
    else:
        say(farewell.summary(outcome))
    sys.exit(farewell.exit_status(outcome))


@pulsetrain.command()
@click.option(
    "--exit", "exit_", is_flag=True, help="End after the report instead of keeping the dashboard up."
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option("--steps", type=int, help="Optimizer steps of the job; default: 120, more on many cores.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of parameters and data order.")
@click.option(
    "--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep data and logs in this new folder."
)
@JSON_FLAG
def demo(exit_: bool, as_json: bool, **flags: Any) -> int:
    """Train a real job on five local nodes, slow one, stop a rank, kill a node, and watch it heal.

    Example: pulsetrain demo --exit --report demo.json
    """
    with _importing():
        from pulsetrain.demo.main import DemoOptions, run
        from pulsetrain.stream.log import configure

    configure(level="error")
    given = {name: value for name, value in flags.items() if value is not None}
    options = DemoOptions(exit=exit_ or as_json, **given)
    return run(options, lambda line: click.echo(line, err=as_json), print_json if as_json else None)


@pulsetrain.command("import")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--store", metavar="URL", help="Straight into chdb:///folder or a ClickHouse server, not a hub."
)
@hub_flags
@JSON_FLAG
def import_(folder: Path, store: str | None, hub: str | None, token: str | None, as_json: bool) -> None:
    """Load the Parquet files in DIR that are named after records; a file that was loaded before adds nothing.

    Example: pulsetrain import recording/ --store chdb:///tmp/pulsetrain
    """
    import dataclasses
    import time

    from pulsetrain.stream import parquet

    found = parquet.files(folder)
    with parquet.open_sink(store, hub, token) as sink:
        done = [parquet.load(r, path, sink, now_ns=time.time_ns()) for r, path in found.items()]
    rows = [dataclasses.asdict(item) for item in done]
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("record", "rows", "stored", "file"), "No rows.")


KAFKA_FLAGS = (
    click.option("--kafka", "servers", metavar="HOST:PORT,...", help="Brokers; default 127.0.0.1:9092."),
    click.option("--config", "file", metavar="FILE", help="TOML file with tables [kafka] and [ingest]."),
)


def kafka_flags(command: Any) -> Any:
    """The options of every command that talks to Kafka."""
    for flag in reversed(KAFKA_FLAGS):
        command = flag(command)
    return command


@pulsetrain.command()
@kafka_flags
@click.option("--store", metavar="URL", required=True, help="chdb:///folder or a ClickHouse server.")
@click.option("--group", metavar="NAME", help="Consumer group; default pulsetrain.")
@click.option("--member", metavar="NAME", help="Stable name of this process in the group.")
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics on this loopback port.")
def ingest(store: str, servers: str | None, file: str | None, metrics_port: int | None, **flags: Any) -> None:
    """Carry records from Kafka into the store, each row once, until SIGINT or SIGTERM.

    Example: pulsetrain ingest --kafka broker-1:9092 --store https://user:password@clickhouse:8443/pulsetrain
    """
    from pulsetrain.hub.ingest import run_ingest
    from pulsetrain.stream.log import configure

    configure()
    run_ingest(store, _path(file), {"servers": servers}, flags, metrics_port, lambda line: click.echo(line))


@pulsetrain.command()
@click.argument("record")
@kafka_flags
@click.option("--rows", type=int, help="End after this many rows; default: at SIGINT.")
@click.option("--from-start", is_flag=True, help="Begin with the oldest message instead of the next one.")
@JSON_FLAG
def tail(
    record: str, servers: str | None, file: str | None, rows: int | None, from_start: bool, as_json: bool
) -> None:
    """Print the rows of RECORD that pass through Kafka; with --json one object a line.

    Example: pulsetrain tail steps --kafka broker-1:9092 --rows 10
    """
    from pulsetrain.hub.ingest import kafka_config
    from pulsetrain.stream.tail import passing

    for row in passing(record, kafka_config(_path(file), {"servers": servers}), rows, from_start=from_start):
        if as_json:
            print_json(row)
        else:
            click.echo("  ".join(f"{k}={v}" for k, v in row.items() if v not in ("", None)))


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


@pulsetrain.group()
def simulate() -> None:
    """Fleets and failures on paper.

    Example: pulsetrain simulate telemetry --ranks 1024 --tp 8 --pp 4 --steps 50 --out fleet/
    """


@simulate.command()
@click.option("--ranks", type=int, required=True, help="Ranks in all: tp x pp x dp.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--steps", type=int, default=100, show_default=True, help="Optimizer steps.")
@click.option("--microbatches", type=int, default=4, show_default=True, help="Microbatches in a step.")
@click.option("--ranks-per-node", type=int, default=8, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--job", default="simulated", show_default=True, help="Name of the job.")
@click.option(
    "--start",
    type=click.DateTime(),
    help="UTC time of the first step; default: so that the last step is now.",
)
@click.option(
    "--fault", "faults", multiple=True, metavar="KIND:KEY=VALUE,...", help="Plant a fault; repeatable."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write Parquet files here.")
@click.option("--store", metavar="URL", help="Straight into chdb:///folder or a ClickHouse server.")
@hub_flags
@JSON_FLAG
def telemetry(
    out: Path | None,
    store: str | None,
    hub: str | None,
    token: str | None,
    faults: tuple[str, ...],
    start: Any,
    as_json: bool,
    **sizes: Any,
) -> None:
    """The records of a job of any size, with faults planted, marked as simulated.

    Example: pulsetrain simulate telemetry --ranks 12288 --tp 8 --pp 8 --steps 20
    --fault straggler:rank=371,factor=1.1 --out fleet/
    """
    from pulsetrain.simulate import write
    from pulsetrain.simulate.spec import parse_fault, timed
    from pulsetrain.stream.parquet import open_sink

    spec = timed(start, faults=tuple(parse_fault(f) for f in faults), **sizes)
    if out is not None:
        rows = write.to_parquet(spec, out, _progress)
    else:
        with open_sink(store, hub, token) as sink:
            rows = write.to_sink(spec, sink, _progress)
    if sys.stderr.isatty():
        click.echo("", err=True)
    if as_json:
        print_json({"job": spec.job, "rows": dict(rows)})
        return
    print_table([{"record": r, "rows": n} for r, n in rows.items()], ("record", "rows"), "No rows.")


@simulate.command("recovery")
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help="TOML with a table [recovery].")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="One value of the plan; repeatable.")
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Simulated runs.")
@click.option("--seed", type=int, default=0, show_default=True)
@JSON_FLAG
def simulate_recovery(plan: Path | None, pairs: tuple[str, ...], runs: int, seed: int, as_json: bool) -> None:
    """What failures cost a job: simulated, and by a closed form.

    Example: pulsetrain simulate recovery --set machines=1000 --set failures_per_machine_day=0.015
    """
    from pulsetrain.simulate.recovery import closed_form, load_plan
    from pulsetrain.simulate.recovery import simulate as run_simulation

    chosen = load_plan(plan, pairs)
    results = {"simulated": run_simulation(chosen, seed=seed, runs=runs), "closed_form": closed_form(chosen)}
    if as_json:
        print_json({name: r.as_json() for name, r in results.items()})
        return
    rows = [{"by": name.replace("_", " "), **r.as_row()} for name, r in results.items()]
    print_table(rows, tuple(rows[0]), "No rows.")


@pulsetrain.group()
def checkpoint() -> None:
    """Checkpoints in storage: list, check, export.

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
    from pulsetrain.recovery.checkpoint import browse

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
    from pulsetrain.recovery.checkpoint import browse

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
    from pulsetrain.recovery.checkpoint import browse
    from pulsetrain.recovery.checkpoint.export import export_safetensors

    checkpoints = browse.open_job(storage, job)
    manifest = browse.committed_step(checkpoints, step)
    files = export_safetensors(checkpoints, manifest, out, prefix=prefix)
    if as_json:
        print_json({"step": manifest.step, "files": [str(f) for f in files]})
        return
    for file in files:
        click.echo(file)


def _progress(rows: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{rows:,} rows", nl=False, err=True)


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Ctrl-C ends the process at once: nothing runs yet, and Python loses an interrupt inside an import's
    own callbacks."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """Entry point. Bad usage is one line on standard error and status 2; other failures status 1."""
    try:
        sys.exit(pulsetrain.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UsageError as error:
        _fail(str(error), 2)
    except PulsetrainError as error:
        _fail(str(error), 1)


def _fail(message: str, status: int) -> None:
    click.echo(f"pulsetrain: {' '.join(message.split())}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
