"""Checks of the machine on which the command runs, of standbys, and of links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pulsetrain.cli.names import job_names
from pulsetrain.cli.numbers import Number, NumberRange
from pulsetrain.cli.options import HubOptions, hub_options, json_option, node_list
from pulsetrain.cli.root import print_json, print_table, pulsetrain
from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.progress import progress

if TYPE_CHECKING:
    from pulsetrain.analytics.machines.network_ports import TrafficRow
    from pulsetrain.collectors.machine.port_sampling import Port, PortRow

LINKS_PATIENCE_S = 120.0
NODES_PATIENCE_S = 600.0
"""A full check takes three and a half minutes, and a minute more with GPUs that do not answer."""


_budget_option = click.option(
    "--budget",
    "budget_ratio",
    type=NumberRange(0.001, 1),
    default=0.01,
    show_default=True,
    metavar="RATIO",
    help="Share of a core that it may use for each port. It pauses where that is too little. 1: no pauses.",
)


@pulsetrain.command()
@click.argument("folder", type=click.Path(path_type=Path), default="/sys/class/infiniband")
@click.option(
    "--seconds",
    type=NumberRange(0, 60),
    default=0.0,
    metavar="S",
    help="Sample the traffic for S seconds. With pauses it takes up to three times as long.",
)
@_budget_option
@json_option
def rdma(folder: Path, seconds: float, budget_ratio: float, as_json: bool) -> None:
    """Show the RDMA ports of this machine: state, rate, counters, traffic.

    FOLDER is /sys/class/infiniband or a copy of it.

    Example: pulsetrain rdma --seconds 1
    """
    from pulsetrain.collectors.machine.rdma import describe

    ports = describe(folder)
    if not ports:
        raise UsageError(f"no RDMA port under {folder}")
    if seconds > 0:
        traffic = _rdma_traffic(folder, seconds, budget_ratio)
        ports = [{**port, "traffic": traffic.get(port["device"], [])} for port in ports]
    if as_json:
        print_json(ports)
        return
    print_table(
        [{**port, "saturated": ", ".join(_saturated(port))} for port in ports],
        ("device", "state", "link_layer", "rate_bits_per_s", "saturated"),
        "No port.",
    )
    if seconds > 0:
        _print_traffic([row for port in ports for row in port["traffic"]])


def _rdma_traffic(folder: Path, seconds: float, budget_ratio: float) -> dict[str, list[TrafficRow]]:
    """What the ports carry, by port. Nothing of those that cannot be sampled."""
    from pulsetrain.analytics.machines.network_ports import share_of_line_rate
    from pulsetrain.collectors.machine import port_sampling

    ports = [port for port in port_sampling.rdma_ports(folder) if not port_sampling.unreadable(port)]
    if not ports:
        return {}
    return {row["device"]: share_of_line_rate(row) for row in _sampled(ports, seconds, budget_ratio)}


def _sampled(ports: Sequence[Port], seconds: float, budget_ratio: float) -> list[PortRow]:
    from pulsetrain.collectors.machine import port_sampling

    with progress("Sampling the traffic"):
        taken = port_sampling.sample(ports, seconds=seconds, budget_ratio=budget_ratio)
    return [port_sampling.summary(port, samples) for port, samples in zip(ports, taken, strict=True)]


@pulsetrain.command()
@click.option(
    "--device", "devices", multiple=True, metavar="NAME", help="A port: mlx5_0/1 or eth0. Repeatable."
)
@click.option(
    "--seconds",
    type=NumberRange(0.01, 60),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Sample for S seconds. With pauses it takes up to three times as long.",
)
@_budget_option
@json_option
def traffic(devices: tuple[str, ...], seconds: float, budget_ratio: float, as_json: bool) -> None:
    """Look at the traffic of this machine's ports every millisecond.

    Shows bursts, idle gaps and how often a link reaches its limit. Without --device it shows all RDMA ports
    and all interfaces with hardware. What falls into a pause is not seen.

    Example: pulsetrain traffic --device mlx5_0/1 --seconds 5 --json
    """
    from pulsetrain.collectors.machine import port_sampling

    rows = _sampled(_ports_to_sample(devices), seconds, budget_ratio)
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "device": row["device"],
            "direction": direction,
            "covered_share": row["covered_share"],
            **row[direction],
        }
        for row in rows
        for direction in port_sampling.DIRECTIONS
    ]
    rates = ("mean_bits_per_s", "peak_bits_per_s", "peak_share", "at_limit_share")
    runs = ("bursts", "longest_burst_ms", "longest_gap_ms")
    print_table(shown, ("device", "direction", "covered_share", *rates, *runs), "No port.")


def _ports_to_sample(devices: Sequence[str]) -> list[Port]:
    """The named ports, else all that can be sampled. Raises `UsageError` where one of these cannot."""
    from pulsetrain.collectors.machine import port_sampling

    ports = port_sampling.ports(devices=devices)
    missing = sorted(set(devices) - {port.device for port in ports})
    if missing or not ports:
        raise UsageError(f"no port {missing[0]!r} on this machine" if missing else "no port on this machine")
    blind = {port.device: why for port in ports if (why := port_sampling.unreadable(port))}
    named = [device for device in devices if device in blind]
    if named or len(blind) == len(ports):
        device = (named or [*blind])[0]
        raise UsageError(f"the traffic of {device} cannot be read: {blind[device]}")
    return [port for port in ports if port.device not in blind]


def _saturated(port: JsonObject) -> list[str]:
    """Return the counters of a port that stand at their largest value."""
    return [name for name, counter in port["counters"].items() if counter["saturated"]]


def _print_traffic(rows: Sequence[JsonObject]) -> None:
    names = ("mean_bits_per_s", "peak_bits_per_s", "mean_share", "peak_share")
    shown = [{**row, **{n: "" if row[n] is None else f"{row[n]:.3g}" for n in names}} for row in rows]
    print_table(
        shown, ("device", "direction", *names, "samples", "covered_share"), "No traffic could be read."
    )


@pulsetrain.command()
@click.option(
    "--seconds",
    type=Number(),
    default=1.0,
    show_default=True,
    metavar="S",
    help="About how long to measure. Starting takes longer.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Which devices to check. auto takes the GPUs, if there are any.",
)
@click.option(
    "--links",
    "job",
    metavar="JOB",
    help="Measure the links between the nodes of JOB instead. A job that trains is slower meanwhile.",
    shell_complete=job_names,
)
@click.option(
    "--limit-mbit",
    type=NumberRange(min=0),
    default=0.0,
    metavar="N",
    help="With --links: each transfer takes N Mbit/s at most. 0 is no limit.",
)
@click.option(
    "--nodes",
    callback=node_list,
    metavar="NODE,NODE,...",
    help="Check these standbys of a job instead. Nodes that train are refused.",
)
@click.option(
    "--level",
    type=click.Choice(["light", "full"]),
    help="With --nodes: how thorough, light by default. light takes 10 s, full up to 4 minutes.",
)
@click.option(
    "--job",
    "of_job",
    default="",
    metavar="JOB",
    help="With --nodes: their job, where several have nodes of these names.",
    shell_complete=job_names,
)
@hub_options
@json_option
def diagnose(
    seconds: float,
    device: str,
    job: str | None,
    limit_mbit: float,
    nodes: tuple[str, ...],
    level: str | None,
    of_job: str,
    hub: HubOptions,
    as_json: bool,
) -> int:
    """Check this machine's arithmetic, speed, memory, loopback and collectives.

    With --links the nodes of a job send to each other in rounds, and the hub names the node, port or switch
    that is slow, loses data or lets nothing through. The exit status is 1 if a check fails or something is
    named.

    With --nodes the hub checks standbys of a job, alone and beside each other. One that fails is not promoted
    until it passes.

    Example: pulsetrain diagnose --seconds 5

    Example: pulsetrain diagnose --nodes node-d,node-e --level full
    """
    if nodes and job is not None:
        raise UsageError("--links cannot be used with --nodes; use one of them")
    if not nodes and (of_job or level is not None):
        raise UsageError(f"{'--job' if of_job else '--level'} goes with --nodes; name the standbys to check")
    if limit_mbit and job is None:
        raise UsageError("--limit-mbit goes with --links; name the job")
    if nodes:
        return _nodes(nodes, level or "light", of_job, hub, as_json=as_json)
    if job is not None:
        return _links(job, limit_mbit, hub, as_json=as_json)
    from pulsetrain.agent.rdma_ends import active_ports, rdma_ends
    from pulsetrain.diagnostics import suite

    report = suite.run(seconds=seconds, device=device, rdma=active_ports(rdma_ends("127.0.0.1")))
    if as_json:
        print_json(report)
    else:
        print_table(suite.rows_for_people(report), ("check", "result", "value", "limit", "detail"), "")
    return 0 if report["ok"] else 1


def _links(job: str, limit_mbit: float, hub: HubOptions, *, as_json: bool) -> int:
    """Measure the links of a job. 1 where something is named."""
    from pulsetrain.protocol.client import HubClient

    client = HubClient(hub.address(), timeout_s=LINKS_PATIENCE_S)
    with progress(f"Measuring the links of {job}"):
        answer = client.measure_links(job, limit_mbit=limit_mbit)
    if as_json:
        print_json(answer)
    else:
        print_table(answer["named"], ("kind", "name", "reason"), links_sentence(answer))
        for node, why in answer["silent"].items():
            click.echo(f"{node} took no part: {why}")
        if answer["named"] and answer["reason"]:
            click.echo(f"Not known: {answer['reason']}")
        click.echo(transport_sentence(answer))
    return 1 if answer["named"] else 0


def _nodes(nodes: Sequence[str], level: str, job: str, hub: HubOptions, *, as_json: bool) -> int:
    """Check standbys. 1 where one fails."""
    from pulsetrain.protocol.client import HubClient

    client = HubClient(hub.address(), timeout_s=NODES_PATIENCE_S)
    with progress(f"Checking {len(nodes)} nodes"):
        answer = client.check_nodes(nodes, level=level, job=job)
    if as_json:
        print_json(answer)
    else:
        print_table(answer["nodes"], ("node", "result", "reason"), "")
        if answer["inconclusive"]:
            click.echo(f"Not known: {answer['inconclusive']}")
    return 1 if any(row["result"] == "failed" for row in answer["nodes"]) else 0


def links_sentence(answer: JsonObject) -> str:
    """What rounds over links say where they named nothing.

    >>> links_sentence({"state": "healthy", "nodes": ["a", "b", "c"], "rounds": 2, "reason": ""})
    'The links of 3 nodes are good, after 2 rounds.'
    """
    if answer["state"] == "healthy":
        return f"The links of {len(answer['nodes'])} nodes are good, after {answer['rounds']} rounds."
    return f"Inconclusive after {answer['rounds']} rounds: {answer['reason']}"


def transport_sentence(answer: JsonObject) -> str:
    """How links were measured, and which interfaces were not.

    >>> transport_sentence({"rdma_ports": ["mlx5_0/1"], "why_tcp": ""})
    'Measured by RDMA (ib_write_bw): mlx5_0/1.'
    >>> transport_sentence({"rdma_ports": [], "why_tcp": "a: it has no RDMA port"})
    'Measured over TCP. No RDMA: a: it has no RDMA port.'
    >>> print(transport_sentence({"rdma_ports": [], "rails": {"eth3": ""}, "unmeasured": ["eth1", "eth2"]}))
    Measured over TCP, and over eth3.
    Not measured: eth1, eth2.
    >>> print(transport_sentence({"rdma_ports": [], "rails": {"eth3": "fewer than 4 transfers to compare"}}))
    Measured over TCP, and over eth3.
    Inconclusive on eth3: fewer than 4 transfers to compare
    """
    if ports := answer.get("rdma_ports"):
        return f"Measured by RDMA (ib_write_bw): {', '.join(ports)}."
    why, rails, others = answer.get("why_tcp"), answer.get("rails") or {}, answer.get("unmeasured")
    over = f"Measured over TCP, and over {', '.join(rails)}." if rails else "Measured over TCP."
    lines = [f"{over} No RDMA: {why}." if why else over]
    lines += [f"Inconclusive on {rail}: {reason}" for rail, reason in rails.items() if reason]
    lines += [f"Not measured: {', '.join(others)}."] if others else []
    return "\n".join(lines)
