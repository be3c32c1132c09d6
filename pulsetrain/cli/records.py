"""Records on their way to the store: import, ingest, tail."""

from __future__ import annotations

import dataclasses
import time
from itertools import accumulate
from pathlib import Path

import click

from pulsetrain.cli.names import record_names
from pulsetrain.cli.options import KafkaOptions, StoreOptions, json_option, kafka_options, store_options
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.progress import after, progress
from pulsetrain.terminal.printable import printable


@pulsetrain.command("import")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@store_options
@json_option
def import_(folder: Path, store: StoreOptions, as_json: bool) -> None:
    """Load Parquet files, or those of NCCL Inspector, into the store.

    DIR holds files named after the records, such as steps.parquet, or HOST-pidPID.log as the Inspector writes
    them. Importing a file twice adds nothing.

    Example: pulsetrain import recording/ --store chdb:///tmp/pulsetrain
    """
    from pulsetrain.collectors.machine import nccl_inspector
    from pulsetrain.stream.store import parquet

    inspected = nccl_inspector.files_in(folder)
    files = parquet.files(folder, required=not inspected)
    rows_of = {record: parquet.rows_of(path) for record, path in files.items()}
    with store.sink() as sink, progress("Importing", total=sum(rows_of.values())) as report:
        loaded = [
            parquet.load(record, files[record], sink, now_ns=time.time_ns(), report=after(report, before))
            for record, before in zip(rows_of, accumulate(rows_of.values(), initial=0), strict=False)
        ]
        loaded += [
            parquet.load_rows("metrics", path, nccl_inspector.batches(path, now_ns=time.time_ns()), sink)
            for path in inspected
        ]
    rows = [dataclasses.asdict(item) for item in loaded]
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("record", "rows", "stored", "file"), "No rows.")


@pulsetrain.command()
@kafka_options
@click.option("--store", metavar="URL", required=True, help="chdb:///folder or a ClickHouse server.")
@click.option("--group", metavar="NAME", help="Consumer group. Default: pulsetrain.")
@click.option("--member", metavar="NAME", help="Stable name of this process in the group.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Serve Prometheus metrics on this loopback port.",
)
def ingest(
    store: str, kafka: KafkaOptions, group: str | None, member: str | None, metrics_port: int | None
) -> None:
    """Carry records from Kafka into the store, each row once.

    The command runs until SIGINT or SIGTERM.

    Example: pulsetrain ingest --kafka broker-1:9092 --store https://user:password@clickhouse:8443/pulsetrain
    """
    from pulsetrain.core.log import configure
    from pulsetrain.hub.ingest import run_ingest

    configure()
    run_ingest(
        store,
        kafka.config,
        {"servers": kafka.servers},
        {"group": group, "member": member},
        metrics_port,
        lambda line: click.echo(line),
    )


@pulsetrain.command()
@click.argument("record", shell_complete=record_names)
@kafka_options
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="End after N rows. Default: run until SIGINT."
)
@click.option("--from-start", is_flag=True, help="Begin with the oldest message instead of the next one.")
@json_option
def tail(record: str, kafka: KafkaOptions, rows: int | None, from_start: bool, as_json: bool) -> None:
    """Print the rows of one record while they pass through Kafka.

    With --json each row is one object on a line of its own.

    Example: pulsetrain tail steps --kafka broker-1:9092 --rows 10
    """
    from pulsetrain.hub.ingest import kafka_config
    from pulsetrain.stream.kafka.tail import tail_rows

    config = kafka_config(kafka.config, {"servers": kafka.servers})
    for row in tail_rows(record, config, rows, from_start=from_start):
        if as_json:
            print_json(row)
        else:
            click.echo("  ".join(f"{k}={printable(v)}" for k, v in row.items() if v not in ("", None)))
