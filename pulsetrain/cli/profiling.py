"""A profile of running ranks, without a change to their script."""

from __future__ import annotations

from pathlib import Path

import click

from pulsetrain.cli.options import HubOptions, hub_options, job_argument, json_option
from pulsetrain.cli.output_files import check_output, write_output
from pulsetrain.cli.root import print_json, pulsetrain
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.progress import progress
from pulsetrain.protocol.client import PROFILE_PATIENCE_S, HubClient
from pulsetrain.terminal.printable import printable


@pulsetrain.command()
@job_argument
@click.option("--steps", type=click.IntRange(1, 100), default=3, show_default=True, help="How many steps.")
@click.option("--ranks", default="0", show_default=True, metavar="LIST", help="Ranks, as 0-3,7.")
@click.option(
    "-o",
    "--output",
    default=Path("profile.json.gz"),
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write.",
)
@hub_options
@json_option
def profile(job: str, steps: int, ranks: str, output: Path, hub: HubOptions, as_json: bool) -> int:
    """Profile the same steps of some ranks of JOB with torch.profiler, and write one trace.

    The exit status is 1 if a rank could not be profiled.

    Example: pulsetrain profile gpt --steps 3 --ranks 0-7 -o gpt.json.gz
    """
    from pulsetrain.analytics import profile_merge
    from pulsetrain.analytics.selection import parse_ranks
    from pulsetrain.hub.profiles import MOST_RANKS

    wanted = parse_ranks(ranks, limit=MOST_RANKS)
    if not wanted:
        raise UsageError("--ranks is empty: give ranks, such as 0-3,7")
    check_output(output)
    client = HubClient(hub.address(), timeout_s=PROFILE_PATIENCE_S)
    with progress(f"Profiling {steps} steps of {job}"):
        answer = client.profile(job, list(wanted), steps)
    profiled, data = profile_merge.packed(answer["profiles"])
    failed = answer["failed"]
    if not profiled:
        raise PulsetrainError(f"no rank could be profiled: {'; '.join(sorted(set(failed.values())))}")
    write_output(output, data)
    facts = {"file": str(output), "bytes": len(data), "ranks": list(profiled), "failed": failed}
    if as_json:
        print_json({"job": job, "first_step": answer["first_step"], "steps": answer["steps"], **facts})
    else:
        last = answer["first_step"] + answer["steps"] - 1
        click.echo(
            f"{output}: steps {answer['first_step']} to {last} of {len(profiled)} rank(s), "
            f"{len(data):,} bytes. Open it at ui.perfetto.dev."
        )
        for rank, why in sorted(failed.items(), key=lambda item: int(item[0])):
            click.echo(f"  rank {rank}: {printable(why)}")
    return 1 if failed else 0
