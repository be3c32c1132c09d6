"""A pool of devices shared by tiers, on paper."""

from __future__ import annotations

from pathlib import Path

import click

from pulsetrain.cli.options import json_option
from pulsetrain.cli.root import print_json, print_table
from pulsetrain.cli.simulation import simulate
from pulsetrain.core.progress import progress


@simulate.command("schedule")
@click.option(
    "--plan", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the table [schedule]."
)
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Set one value of the plan. Repeatable."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed.")
@json_option
def simulate_schedule(plan: Path | None, pairs: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Share a pool of devices among thousands of jobs of three tiers, over weeks.

    The policy is the one that the hub uses. Nodes fail, jobs arrive, are pre-empted, moved and resized.

    Example: pulsetrain simulate schedule --set devices=1000 --set jobs=600 --set days=7
    """
    from pulsetrain.simulate.schedule import simulate_schedule as run_simulation
    from pulsetrain.simulate.schedule_plan import load_schedule_plan

    chosen = load_schedule_plan(plan, pairs)
    with progress("Simulating", total=chosen.days, unit="days") as report:
        result = run_simulation(chosen, seed=seed, report=report)
    if as_json:
        print_json(result.as_json())
        return
    click.echo(
        f"simulated: {result.devices:,} devices, {result.days:g} days, {result.jobs:,} jobs, "
        f"{result.failures:,} failures of nodes, {result.offered_ratio:.1%} of all device time offered, "
        f"{result.utilisation:.1%} used"
    )
    rows = [each.as_row() for each in result.tiers]
    print_table(rows, tuple(rows[0]), "No rows.")
