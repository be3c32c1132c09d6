"""Fleets and failures on paper."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsetrain.cli.numbers import Number
from pulsetrain.cli.options import (
    HubOptions,
    StoreOptions,
    grouped,
    hub_options,
    json_option,
    store_options,
)
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.progress import progress

if TYPE_CHECKING:
    from pulsetrain.simulate.spec import FleetSpec
    from pulsetrain.stream.spool.transport import Transport


@pulsetrain.group()
def simulate() -> None:
    """Simulate fleets and failures.

    Example: pulsetrain simulate telemetry --ranks 1024 --tp 8 --pp 4 --steps 50 --out fleet/
    """


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The size and shape of a simulated job."""

    ranks: int
    tp: int
    pp: int
    steps: int
    microbatches: int
    ranks_per_node: int
    seed: int
    job: str


_fleet_options = grouped(
    "fleet",
    FleetOptions,
    click.option("--ranks", type=int, required=True, metavar="N", help="Ranks in all: tp x pp x dp."),
    click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="Tensor-parallel ranks."),
    click.option("--pp", type=int, default=1, show_default=True, metavar="N", help="Pipeline stages."),
    click.option("--steps", type=int, default=100, show_default=True, metavar="N", help="Optimizer steps."),
    click.option(
        "--microbatches", type=int, default=4, show_default=True, metavar="N", help="Microbatches in a step."
    ),
    click.option(
        "--ranks-per-node", type=int, default=8, show_default=True, metavar="N", help="Ranks of each node."
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the random parts."
    ),
    click.option("--job", default="simulated", show_default=True, metavar="NAME", help="Name of the job."),
)


@simulate.command()
@_fleet_options
@click.option("--start", type=click.DateTime(), help="UTC time of the first step. Default: the job ends now.")
@click.option(
    "--fault", "faults", multiple=True, metavar="KIND:KEY=VALUE,...", help="Plant a fault. Repeatable."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write Parquet files here.")
@click.option("--kafka", metavar="HOST:PORT,...", help="Send through Kafka, as agents do.")
@store_options
@json_option
def telemetry(
    fleet: FleetOptions,
    start: datetime | None,
    faults: tuple[str, ...],
    out: Path | None,
    kafka: str | None,
    store: StoreOptions,
    as_json: bool,
) -> None:
    """Make the records of a job of any size, with planted faults.

    All records are marked as simulated. They go to the hub unless --out, --kafka or --store is given.

    Example: pulsetrain simulate telemetry --ranks 12288 --tp 8 --pp 8 --steps 20
    --fault straggler:rank=371,factor=1.1 --out fleet/
    """
    from pulsetrain.simulate.spec import FleetSpec, parse_fault, starting

    planted = tuple(parse_fault(fault) for fault in faults)
    spec = starting(FleetSpec(faults=planted, **asdict(fleet)), start)
    rows = _write(spec, out, kafka, store)
    if as_json:
        print_json({"job": spec.job, "rows": dict(rows)})
        return
    print_table([{"record": r, "rows": n} for r, n in rows.items()], ("record", "rows"), "No rows.")


def _write(spec: FleetSpec, out: Path | None, kafka: str | None, store: StoreOptions) -> Counter[str]:
    """Write the records to the chosen place. Return how many rows of each record are new."""
    from pulsetrain.simulate import write

    if out is not None:
        with progress("Simulating") as report:
            return write.to_parquet(spec, out, report)
    if kafka is not None:
        with contextlib.closing(_kafka(kafka)) as transport, progress("Simulating") as report:
            return write.to_transport(spec, transport, report)
    with store.sink() as sink, progress("Simulating") as report:
        return write.to_sink(spec, sink, report)


def _kafka(servers: str) -> Transport:
    from pulsetrain.hub.ingest import kafka_config
    from pulsetrain.stream.kafka.transport import KafkaTransport

    return KafkaTransport(kafka_config(None, {"servers": servers}))


@dataclass(frozen=True, kw_only=True)
class LiveFleetOptions:
    """The size, shape and pace of a live fleet."""

    nodes: int
    standbys: int
    ranks_per_node: int
    tp: int
    pp: int
    dp: int
    step_s: float
    checkpoint_every: int
    relaunch_s: float
    seed: int
    job: str


_count = click.IntRange(0)
_live_fleet_options = grouped(
    "fleet",
    LiveFleetOptions,
    click.option("--nodes", type=int, default=16, show_default=True, metavar="N", help="Nodes that train."),
    click.option("--standbys", type=_count, default=2, show_default=True, metavar="N", help="Spare nodes."),
    click.option(
        "--ranks-per-node", type=int, default=8, show_default=True, metavar="N", help="Ranks of each node."
    ),
    click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="Tensor-parallel ranks."),
    click.option("--pp", type=int, default=1, show_default=True, metavar="N", help="Pipeline stages."),
    click.option("--dp", type=_count, default=0, metavar="N", help="Replicas. Default: what is left."),
    click.option(
        "--step-s", type=Number(), default=2.0, show_default=True, metavar="S", help="Time of a step."
    ),
    click.option(
        "--checkpoint-every", type=_count, default=10, show_default=True, metavar="M",
        help="Steps between two checkpoints. 0: none.",
    ),
    click.option(
        "--relaunch-s", type=Number(), default=3.0, show_default=True, metavar="S",
        help="From a launch to the first step.",
    ),
    click.option("--seed", type=_count, default=0, show_default=True, metavar="K", help="Seed of chance."),
    click.option(
        "--job", default="simulated-live", show_default=True, metavar="NAME", help="Name of the job."
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FeedOptions:
    """For how long and at which rates a live fleet is fed to the hub."""

    seconds: float
    heartbeat_s: float
    spans_every: int
    metrics_s: float
    senders: int
    say_s: float


_feed_options = grouped(
    "feed",
    FeedOptions,
    click.option("--seconds", type=Number(), default=600.0, show_default=True, metavar="S", help="Length."),
    click.option(
        "--heartbeat-s", type=Number(), default=1.0, show_default=True, metavar="S",
        help="Time between two heartbeats of an agent.",
    ),
    click.option(
        "--spans-every", type=int, default=5, show_default=True, metavar="N",
        help="Spans of communication are sent of every Nth step.",
    ),
    click.option(
        "--metrics-s", type=Number(), default=10.0, show_default=True, metavar="S",
        help="Time between two samples of a port.",
    ),
    click.option(
        "--senders", type=int, default=4, show_default=True, metavar="N",
        help="Connections that carry the records of all nodes.",
    ),
    click.option(
        "--say-s", type=Number(), default=5.0, show_default=True, metavar="S",
        help="Time between two reports.",
    ),
)  # fmt: skip


@simulate.command("fleet-live")
@_live_fleet_options
@_feed_options
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE",
    help="TOML file with the faults. Default: one of each kind, one after the other.",
)  # fmt: skip
@click.option("--list-faults", is_flag=True, help="Print the kinds of faults and their keys.")
@hub_options
@json_option
def fleet_live(
    fleet: LiveFleetOptions,
    feed: FeedOptions,
    plan: Path | None,
    list_faults: bool,
    hub: HubOptions,
    as_json: bool,
) -> None:
    """Feed a real hub from a simulated fleet: agents, heartbeats, records, faults by a plan.

    It answers the hub's commands as agents do. Nodes are called sim-...

    Example: pulsetrain simulate fleet-live --nodes 64 --tp 8 --pp 2 --seconds 300
    """
    from pulsetrain.simulate.live import plan as plans
    from pulsetrain.simulate.live.fleet import LiveFleet
    from pulsetrain.simulate.live.run import LiveOptions, run

    if list_faults:
        kinds = [asdict(row) for row in plans.list_faults()]
        if as_json:
            print_json(kinds)
        else:
            print_table(kinds, ("kind", "meaning", "keys"), "No faults.")
        return
    shape, options = LiveFleet(**asdict(fleet)), LiveOptions(**asdict(feed))
    faults = plans.read_plan(plan, shape) if plan else plans.default_plan(shape, options.seconds)
    if not as_json:
        click.echo(f"simulated fleet: {shape.ranks:,} ranks on {shape.nodes:,} nodes, job {shape.job}")
        for fault in faults:
            click.echo(f"{fault.at_s:7.1f} s {fault.kind}: {fault.label}")
    summary = run(
        shape, faults, options, hub.address(),
        lambda report: print_json(asdict(report)) if as_json else click.echo(report.line()),
    )  # fmt: skip
    if as_json:
        print_json(asdict(summary))
    else:
        rows = [{"": name, "value": value} for name, value in asdict(summary).items() if name != "faults"]
        print_table(rows, ("", "value"), "Nothing.")
    if summary.interrupted:
        raise click.Abort


@simulate.command("recovery")
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the table [recovery]."
)
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Set one value of the plan. Repeatable."
)
@click.option(
    "--runs", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Simulated runs."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the runs.")
@json_option
def simulate_recovery(plan: Path | None, pairs: tuple[str, ...], runs: int, seed: int, as_json: bool) -> None:
    """Estimate what failures cost a job, by simulation and by a formula.

    Example: pulsetrain simulate recovery --set machines=1000 --set failures_per_machine_day=0.015
    """
    from pulsetrain.simulate.recovery import simulate as run_simulation
    from pulsetrain.simulate.recovery_estimate import closed_form
    from pulsetrain.simulate.recovery_plan import load_plan

    chosen = load_plan(plan, pairs)
    with progress("Simulating"):
        simulated = run_simulation(chosen, seed=seed, runs=runs)
    results = {"simulated": simulated, "closed_form": closed_form(chosen)}
    if as_json:
        print_json({name: r.as_json() for name, r in results.items()})
        return
    rows = [{"by": name.replace("_", " "), **r.as_row()} for name, r in results.items()]
    print_table(rows, tuple(rows[0]), "No rows.")


@simulate.command("fleet")
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the table [fleet]."
)
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Set one value of the plan. Repeatable."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed.")
@json_option
def simulate_fleet(plan: Path | None, pairs: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Compare ways to go on after failures of devices, over months.

    The job waits, drops replicas (dp-drop), or runs them at a smaller tensor-parallel degree (ntp), with more
    power for the devices that are left (ntp-pw). All see the same trace of failures.

    Example: pulsetrain simulate fleet --set devices=32768 --set days=90
    """
    from pulsetrain.simulate.fleet import simulate_fleet as run_simulation
    from pulsetrain.simulate.fleet_plan import load_fleet_plan

    chosen = load_fleet_plan(plan, pairs)
    with progress("Simulating"):
        result = run_simulation(chosen, seed=seed)
    if as_json:
        print_json(result.as_json())
        return
    click.echo(
        f"simulated: {chosen.devices:,} devices, {chosen.days:g} days, {result.failures:,} failures, "
        f"{result.failed_ratio:.2%} of devices away on average, {result.worst_failed_ratio:.2%} at worst"
    )
    rows = [each.as_row() for each in result.strategies]
    print_table(rows, tuple(rows[0]), "No rows.")
