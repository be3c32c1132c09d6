"""The hub as a process: serve."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pulsetrain.agent.hub_flags import DATA
from pulsetrain.cli.interrupts import importing
from pulsetrain.cli.options import grouped
from pulsetrain.cli.root import pulsetrain


@dataclass(frozen=True, kw_only=True)
class HubFlags:
    """The keys of the table [hub] that have a flag. None means that the flag was not given."""

    host: str | None
    port: int | None
    dashboard: bool | None
    dashboard_port: int | None
    token: str | None
    store: str | None
    kafka: str | None
    kv: str | None
    tls_certificate: str | None
    tls_key: str | None
    ca_certificate: str | None


_hub_flags = grouped(
    "hub",
    HubFlags,
    click.option("--host", metavar="IP", help="Address to listen on. Default: 127.0.0.1."),
    click.option("--port", type=int, metavar="N", help="Port of the API. 0 takes a free one. Default: 8780."),
    click.option(
        "--dashboard-port",
        type=int,
        metavar="N",
        help="Port of the dashboard. 0 takes a free one. Default: 8790.",
    ),
    click.option(
        "--no-dashboard",
        "dashboard",
        flag_value=False,
        type=bool,
        default=None,
        help="Do not start the dashboard.",
    ),
    click.option(
        "--token",
        metavar="TOKEN",
        help="Token that clients must send. Default: one that the hub makes and keeps in the data folder.",
    ),
    click.option(
        "--store",
        metavar="URL",
        help="ClickHouse server, http(s)://user@host:port/database. Default: the embedded engine.",
    ),
    click.option("--kafka", metavar="HOST:PORT,...", help="Take records from these brokers as well."),
    click.option(
        "--kv",
        metavar="URL",
        help="etcd://host:port,... or kubernetes://NAMESPACE: one of the hubs that name it leads. "
        "Default: this hub is alone.",
    ),
    click.option("--tls-certificate", metavar="FILE", help="Certificate to show. Default: no TLS."),
    click.option("--tls-key", metavar="FILE", help="Its key. Default: NAME.key beside NAME.pem."),
    click.option(
        "--ca-certificate",
        metavar="FILE",
        help="CA by which dashboard and commands here check it. Default: ca.pem beside the certificate.",
    ),
)


@pulsetrain.command()
@DATA
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the tables [hub], [controller], [watch] and [notify].",
)
@_hub_flags
@click.option("--observe-only", is_flag=True, default=None, help="Record what would be done, and do nothing.")
@click.option("--of-run", is_flag=True, hidden=True, help="End on SIGINT alone, as the hub of a run.")
def serve(
    data: Path | None, config: Path | None, hub: HubFlags, observe_only: bool | None, of_run: bool
) -> None:
    """Run the hub: ingest, store, analysis, controller and dashboard.

    The command runs until SIGINT or SIGTERM. Jobs keep training while the hub is away.

    Example: pulsetrain serve --data /var/lib/pulsetrain --port 8780
    """
    with importing():
        from pulsetrain.core.log import configure
        from pulsetrain.hub.serve import ENDING
        from pulsetrain.hub.serve import serve as run_hub
        from pulsetrain.hub.settings import load_settings
        from pulsetrain.protocol.client import data_folder

    configure()
    settings = load_settings(config, asdict(hub), {"observe_only": observe_only})
    folder = data.expanduser().absolute() if data else data_folder()
    run_hub(folder, settings, lambda line: click.echo(line), (signal.SIGINT,) if of_run else ENDING)
