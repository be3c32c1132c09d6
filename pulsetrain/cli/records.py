"""Records on their way: import, ingest, tail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pulsetrain.cli.root import JSON_FLAG, hub_flags, path_of, print_json, print_table, pulsetrain


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

    from pulsetrain.stream.store import parquet

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
    from pulsetrain.core.log import configure
    from pulsetrain.hub.ingest import run_ingest

    configure()
    run_ingest(store, path_of(file), {"servers": servers}, flags, metrics_port, lambda line: click.echo(line))


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
    from pulsetrain.stream.kafka.tail import passing

    for row in passing(
        record, kafka_config(path_of(file), {"servers": servers}), rows, from_start=from_start
    ):
        if as_json:
            print_json(row)
        else:
            click.echo("  ".join(f"{k}={v}" for k, v in row.items() if v not in ("", None)))
