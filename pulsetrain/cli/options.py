"""Options that several commands share. Each is documented here, once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import click

from pulsetrain.agent.hub_flags import DATA, HUB, TOKEN
from pulsetrain.cli.names import job_names
from pulsetrain.core.errors import UsageError
from pulsetrain.protocol.client import HubAddress, HubClient, find_hub, leading

if TYPE_CHECKING:
    from pulsetrain.stream.store.clickhouse import Store
    from pulsetrain.stream.store.parquet import Sink

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result", bound=Callable[..., object])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text for people.")
job_option = click.option(
    "--job", required=True, metavar="NAME", help="Name of the job.", shell_complete=job_names
)
job_argument = click.argument("job", shell_complete=job_names)


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """Which hub to ask: its address and token, or the folder of its data."""

    hub: str | None = None
    token: str | None = None
    data: Path | None = None

    def address(self) -> HubAddress:
        """Return where the hub listens, of several the one that leads. Raises `UsageError` for none."""
        return leading(self.addresses())

    def addresses(self) -> HubAddress:
        """Return all hubs of which one leads. Raises `UsageError` for none."""
        return find_hub(self.hub, self.token, data=self.data and self.data.expanduser())

    def client(self) -> HubClient:
        """Return a client of the hub."""
        return HubClient(self.address())


@dataclass(frozen=True, kw_only=True)
class StoreOptions(HubOptions):
    """Which store to read or fill: the one at `store`, else the hub's."""

    store: str | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[Store]:
        """Open the store for queries and close it at the end. Raises `UsageError` for one without records."""
        from pulsetrain.stream.store.clickhouse import open_store

        if self.store is None:
            address = self.address()
            opened = open_store(address.url, token=address.token, ca=address.ca)
        else:
            _check_folder(self.store)
            opened = open_store(self.store, token=self.token)
        with contextlib.closing(opened):
            if self.store is not None and not opened.has_records():
                raise UsageError(f"store {opened.name}: it has no records; fill it with `pulsetrain import`")
            yield opened

    def sink(self) -> contextlib.AbstractContextManager[Sink]:
        """Return what takes records: the store itself, or the hub's HTTP route."""
        from pulsetrain.stream.store.parquet import open_sink

        return open_sink(self.address() if self.store is None else self.store, token=self.token)


def _check_folder(store: str) -> None:
    """Raise `UsageError` where `store` is a folder that is not there. To open it would make it."""
    scheme, _, folder = store.partition("://")
    if scheme == "chdb" and folder.startswith("/") and not Path(folder).is_dir():
        raise UsageError(f"store {store!r}: there is no such folder")


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """Which brokers to talk to, and the file with the rest of their settings."""

    servers: str | None = None
    config: Path | None = None


def grouped(
    name: str, cls: Callable[..., object], *options: Callable[[Function], Function]
) -> Callable[[Function], Function]:
    """Return a decorator that adds `options` and passes their values as one `cls` in parameter `name`.

    `cls` is a dataclass with one field for each option.
    """
    fields = [field.name for field in dataclasses.fields(cast("type[HubOptions]", cls))]

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def run(**values: object) -> object:
            given = {field: values.pop(field) for field in fields}
            return command(**values, **{name: cls(**given)})

        filled = cast("Function", run)
        for option in reversed(options):
            filled = option(filled)
        return filled

    return decorate


_HUB = (HUB, TOKEN, DATA)
_STORE = click.option(
    "--store",
    metavar="URL",
    help="Use this store instead of the hub: chdb:///folder or http(s)://user@host:port/database.",
)
_KAFKA = (
    click.option(
        "--kafka", "servers", metavar="HOST:PORT,...", help="Kafka brokers. Default: 127.0.0.1:9092."
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="TOML file with the tables [kafka] and [ingest].",
    ),
)

hub_options = grouped("hub", HubOptions, *_HUB)
store_options = grouped("store", StoreOptions, _STORE, *_HUB)
kafka_options = grouped("kafka", KafkaOptions, *_KAFKA)


def node_list(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Names of nodes, separated by commas. A click callback."""
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    if "" in names:
        raise click.BadParameter(f"{value!r}: allowed: names of nodes, separated by commas")
    return names
