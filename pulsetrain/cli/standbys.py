"""How many standbys a fleet needs, from its own record of failures."""

from __future__ import annotations

from typing import TypedDict

import click

from pulsetrain.cli.numbers import Number
from pulsetrain.cli.options import StoreOptions, json_option, store_options
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import UsageError


class OnRecord(TypedDict):
    """What a store knows of machines and their failures. `daily_rate` is per machine."""

    machines: int
    machine_days: float
    failures: int
    daily_rate: float


@pulsetrain.command()
@click.option(
    "--machines", type=click.IntRange(1), metavar="N", help="Machines that train. Default: all on record."
)
@click.option(
    "--failures-per-node-day", "rate", type=Number(), metavar="X",
    help="Failures of one machine in a day. Default: from the record.",
)  # fmt: skip
@store_options
@json_option
def standbys(machines: int | None, rate: float | None, store: StoreOptions, as_json: bool) -> None:
    """Say how many standbys suffice on 99 of 100 days.

    Example: pulsetrain standbys --machines 1024
    """
    from pulsetrain.recovery.standby_advice import standbys_needed

    if machines is not None and rate is not None:
        record, count, daily_rate = None, machines, rate
    else:
        record = _on_record(store)
        count = record["machines"] if machines is None else machines
        daily_rate = record["daily_rate"] if rate is None else rate
    if not count:
        raise UsageError("no machine is on record: give --machines N")
    needed = standbys_needed(count, daily_rate)
    if as_json:
        print_json({"machines": count, "daily_rate": daily_rate, "standbys": needed, "record": record})
        return
    noun = "standby" if needed == 1 else "standbys"
    machine = "machine" if count == 1 else "machines"
    click.echo(f"{needed} {noun} for {count:,} {machine}: on 99 of 100 days no more of them fail.")
    if record is not None and rate is None:
        click.echo(
            f"On record: {record['failures']} failures in {record['machine_days']:,.1f} machine days. "
            f"With one more at the published rate, {daily_rate:.3%} of the machines fail in a day."
        )


def _on_record(options: StoreOptions) -> OnRecord:
    from pulsetrain.recovery.standby_advice import FailureRecord
    from pulsetrain.stream.queries.fleet import machine_failures

    with options.open() as store:
        (row,) = machine_failures(store).to_pylist()
    record = FailureRecord(failures=row["failures"], machine_days=row["machine_days"])
    return {
        "machines": row["machines"],
        "machine_days": record.machine_days,
        "failures": record.failures,
        "daily_rate": record.daily_rate,
    }
