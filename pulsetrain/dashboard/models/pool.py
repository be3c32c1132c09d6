"""What the page Pool shows: devices in use, each job with its tier, share and move, and the newest actions.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.moves import under_way
from pulsetrain.recovery.pool.demand import GUARANTEE, TIERS, Tier

_SPELLED = {"preempt": "pre-empt"}


@dataclass(frozen=True, kw_only=True)
class PoolJob:
    """A job of the pool. `nodes` hold its ranks now.

    `share` is that of its last whole hour, None before. `below` is the guarantee that it misses, None
    where it misses none. `doing` is "" where nothing is under way.
    """

    job: str
    tier: str
    promised: bool
    devices: int
    most_devices: int
    nodes: tuple[str, ...]
    share: float | None
    below: float | None
    doing: str


def headline(pool: JsonObject) -> str:
    """How many devices are in use.

    >>> headline({"machines": {"a": {"devices": 4, "used": 2}, "b": {"devices": 4, "used": 4}}})
    '6 of 8 devices in use on 2 machines'
    """
    machines = pool["machines"].values()
    used, devices = (sum(int(machine[key]) for machine in machines) for key in ("used", "devices"))
    noun = "machine" if len(machines) == 1 else "machines"
    return f"{used:,} of {devices:,} devices in use on {len(machines):,} {noun}"


def pool_jobs(pool: JsonObject, live: Sequence[JsonObject]) -> list[PoolJob]:
    """The jobs of the pool, the best tier first. `live` is what the hub knows of all jobs."""
    known = {str(job["job"]): job for job in live}
    rows = [_job(row, known.get(str(row["job"]), {})) for row in pool["jobs"]]
    return sorted(rows, key=lambda row: (_rank(row.tier), row.job))


def _rank(tier: str) -> int:
    return TIERS.index(tier) if tier in TIERS else len(TIERS)


def _job(row: JsonObject, job: JsonObject) -> PoolJob:
    share = row["hour_share"]
    guarantee = _guarantee(str(row["tier"])) if row["promised"] else 0.0
    nodes = [str(node["node"]) for node in job.get("nodes", []) if node.get("ranks")]
    waits = f"waits: {row['why_waits']}" if row["why_waits"] else ""
    return PoolJob(
        job=str(row["job"]),
        tier=str(row["tier"]),
        promised=bool(row["promised"]),
        devices=int(row["devices"]),
        most_devices=int(row["most_devices"]),
        nodes=tuple(sorted(nodes)) if row["devices"] else (),
        share=share,
        below=guarantee if share is not None and share < guarantee else None,
        doing=under_way(job) or waits,
    )


def _guarantee(tier: str) -> float:
    return GUARANTEE[Tier(tier)] if tier in TIERS else 0.0


def share_text(job: PoolJob) -> str:
    """The share of the last whole hour, with the guarantee where that was missed."""
    if job.share is None:
        return "-"
    missed = "" if job.below is None else f" ▲ below {job.below:.0%}"
    return f"{job.share:.1%}{missed}"


def change_text(action: JsonObject) -> str:
    """Where an action takes devices from, and where it gives them.

    >>> change_text({"from": {"a": 2}, "to": {"a": 1, "b": 1}})
    'a 2 → a 1, b 1'
    """
    return f"{_places(action['from'])} → {_places(action['to'])}"


def _places(blocks: Mapping[str, int]) -> str:
    return ", ".join(f"{node} {count}" for node, count in sorted(blocks.items())) or "nothing"


def action_text(action: JsonObject) -> str:
    """What was done, in the words of the docs."""
    return _SPELLED.get(str(action["what"]), str(action["what"]))
