"""Verdicts from files, from the store, and from this machine."""

from __future__ import annotations

from pathlib import Path

import click

from pulsetrain.cli.root import JSON_FLAG, hub_flags, print_json, print_table, pulsetrain
from pulsetrain.core.errors import UsageError


@pulsetrain.command()
@click.argument("trace", type=click.Path(path_type=Path))
@JSON_FLAG
def whatif(trace: Path, as_json: bool) -> None:
    """How fast the job would be without its stragglers, from a Parquet TRACE of one row for each operation.

    Example: pulsetrain whatif trace.parquet --json
    """
    from pulsetrain.analytics.whatif.analysis import analyze_file, sentences

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
    from pulsetrain.analytics.machines.logs import read_folder

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
    from pulsetrain.analytics.machines.network_ports import measure
    from pulsetrain.collectors.machine.rdma import describe

    ports = describe(folder)
    if not ports:
        raise UsageError(f"no RDMA port under {folder}")
    if seconds > 0:
        from pulsetrain.collectors.machine.rdma import Burst

        ports = measure(ports, Burst(folder).run(seconds=seconds))
    if as_json:
        print_json(ports)
        return
    for port in ports:
        blind = [name for name, c in port["counters"].items() if c["saturated"]]
        port["saturated"] = ", ".join(blind)
    print_table(ports, ("device", "state", "link_layer", "rate_bits_per_s", "saturated"), "No port.")
    traffic = [row for port in ports for row in port.get("traffic", ())]
    if seconds > 0:
        names = ("mean_bits_per_s", "peak_bits_per_s", "mean_share", "peak_share")
        shown = [{**r, **{n: "" if r[n] is None else f"{r[n]:.3g}" for n in names}} for r in traffic]
        print_table(shown, ("device", "direction", *names, "samples"), "No traffic could be read.")


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
    from pulsetrain.analytics import report
    from pulsetrain.analytics.machines import hardware
    from pulsetrain.analytics.machines.policies import load

    answer = hardware.read_file(file, node=node, policies=load(policies))
    if as_json:
        print_json(report.rows(answer))
    else:
        for line in report.lines(answer, everything=True):
            click.echo(line)
    return report.exit_status(answer) if check else 0


@pulsetrain.command()
@click.argument("file", type=click.Path(path_type=Path))
@JSON_FLAG
def failslow(file: Path, as_json: bool) -> None:
    """Which worker, or the whole job, was slower than it used to be, from a table of step times.

    Example: pulsetrain failslow steps.csv --json
    """
    from pulsetrain.analytics import report
    from pulsetrain.analytics.slowness import fail_slow

    answer = fail_slow.find(fail_slow.read(file), config=fail_slow.single_look())
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
    from pulsetrain.protocol.client import find_hub
    from pulsetrain.stream.store.clickhouse import open_store

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
@click.option("--device", metavar="DEVICE/DTYPE", help="What all ranks run on, for the MFU: H100-SXM/bf16.")
@click.option("--peaks", type=click.Path(path_type=Path), metavar="FILE", help="A site's own device peaks.")
@hub_flags
@JSON_FLAG
def analyze(
    job: str,
    since: int | None,
    until: int | None,
    attempt: int | None,
    store: str | None,
    verdicts: bool,
    device: str | None,
    peaks: Path | None,
    hub: str | None,
    token: str | None,
    as_json: bool,
) -> int:
    """What the analyzers find in the stored steps of a job; exit status 1 where something asks for action.

    Example: pulsetrain analyze --job gpt --since 100 --until 300 --json
    """
    from pulsetrain.analytics import report
    from pulsetrain.protocol.client import find_hub
    from pulsetrain.stream.store.clickhouse import open_store

    peak = report.device_peak(device, peaks) if device else None
    if store is None:
        found = find_hub(hub, token)
        store, token = found.url, found.token
    opened = open_store(store, token=token)
    try:
        answer = report.verdicts_from_store(
            opened, job, since=since, until=until, attempt=attempt, device=peak
        )
    finally:
        opened.close()
    if as_json:
        print_json(report.states(answer) if verdicts else report.rows(answer))
    else:
        for line in report.lines(answer, everything=verdicts):
            click.echo(line)
    return report.exit_status(answer)


@pulsetrain.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@JSON_FLAG
def hang(folder: Path, as_json: bool) -> int:
    """Which ranks hold a hung job up, from PyTorch Flight Recorder dumps alone: one file a rank in DIR.

    Or from NCCL RAS reports: two or more files in DIR that ncclras -f json wrote some seconds apart.
    Exit status 1 where somebody is to blame. Example: pulsetrain hang /tmp/nccl_trace --json
    """
    from pulsetrain.analytics.hangs import ras
    from pulsetrain.analytics.hangs.flight_recorder import sentences, verdict

    reports = ras.reports_in(folder)
    answer = ras.verdict(reports) if reports else verdict(folder)
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
