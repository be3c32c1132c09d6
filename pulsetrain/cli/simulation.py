"""Fleets and failures on paper."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pulsetrain.cli.root import JSON_FLAG, hub_flags, print_json, print_table, progress, pulsetrain

if TYPE_CHECKING:
    from pulsetrain.stream.spool.transport import Transport


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
@click.option("--kafka", metavar="HOST:PORT,...", help="Through Kafka, as agents send.")
@hub_flags
@JSON_FLAG
def telemetry(
    out: Path | None,
    store: str | None,
    kafka: str | None,
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
    from pulsetrain.stream.store.parquet import open_sink

    spec = timed(start, faults=tuple(parse_fault(f) for f in faults), **sizes)
    if out is not None:
        rows = write.to_parquet(spec, out, progress)
    elif kafka is not None:
        with contextlib.closing(_kafka(kafka)) as transport:
            rows = write.to_transport(spec, transport, progress)
    else:
        with open_sink(store, hub, token) as sink:
            rows = write.to_sink(spec, sink, progress)
    if sys.stderr.isatty():
        click.echo("", err=True)
    if as_json:
        print_json({"job": spec.job, "rows": dict(rows)})
        return
    print_table([{"record": r, "rows": n} for r, n in rows.items()], ("record", "rows"), "No rows.")


def _kafka(servers: str) -> Transport:
    from pulsetrain.hub.ingest import kafka_config
    from pulsetrain.stream.kafka.transport import KafkaTransport

    return KafkaTransport(kafka_config(None, {"servers": servers}))


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
