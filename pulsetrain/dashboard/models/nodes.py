"""Nodes, and what evicting one would cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.states import NODE_STATES, look
from pulsetrain.dashboard.models.text import duration, fold, natural
from pulsetrain.dashboard.models.time_use import price_sentence


def ordered_nodes(nodes: Sequence[JsonObject], *, job: str, find: str = "") -> list[JsonObject]:
    """The nodes of a job (a standby belongs to every job), the most urgent first, then in natural order of
    name."""
    chosen = [
        n
        for n in nodes
        if (not job or n.get("job") in (job, "", None))
        and find.strip().lower() in f"{n.get('node')} {n.get('address')}".lower()
    ]
    return sorted(
        chosen,
        key=lambda n: (-look(str(n.get("state", "")), NODE_STATES).urgency, natural(str(n["node"]))),
    )


def past_nodes(job: str, placed: Sequence[JsonObject], gone: Sequence[JsonObject]) -> list[JsonObject]:
    """The nodes of a job that does not run: where its ranks were (`past.job_nodes`), and which nodes it lost
    before (`past.gone_nodes`). None of them has a heartbeat."""
    lost = {row["node"]: "evicted" if row["kind"] == "evict" else "lost" for row in gone}
    rows = [
        {"node": row["node"], "job": job, "address": row["address"], "ranks": row["ranks"], "node_rank": rank}
        for rank, row in enumerate(placed)
    ]
    names = {row["node"] for row in rows}
    rows += [{"node": name, "job": job, "ranks": []} for name in lost if name not in names]
    return [{"reason": "the job does not run", "state": lost.get(row["node"], "left"), **row} for row in rows]


def ranks_text(ranks: Sequence[int] | None) -> str:
    """A node's ranks as ranges, "-" for none."""
    return fold(ranks) if ranks else "-"


def stored_gpus(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """The GPUs of a node as its agent listed them (`explore.node_gpus`). [] where it did not."""
    for row in rows[:1]:
        try:
            gpus = json.loads(row["detail"]).get("gpus", [])
        except (ValueError, AttributeError):
            return []
        return [gpu for gpu in gpus if isinstance(gpu, dict)]
    return []


def gpu_cells(number: int, gpu: JsonObject) -> list[str]:
    """Who a GPU is: its number, model, UUID, serial number, PCI address, memory node, NVLink domain.

    >>> gpu_cells(0, {"uuid": "GPU-1", "model": "H100", "numa": -1})
    ['0', 'H100', 'GPU-1', '-', '-', '-', '-']
    """
    numa = gpu.get("numa", -1)
    words = [str(gpu.get(name) or "-") for name in ("model", "uuid", "serial", "pci")]
    near = "-" if numa in (None, -1) else str(numa)
    return [str(gpu.get("index", number)), *words, near, str(gpu.get("nvlink_domain") or "-")]


def can_be_evicted(node: JsonObject) -> bool:
    """Whether the node is still there to be evicted."""
    return node.get("state") not in ("evicted", "left", "lost")


def heartbeat_age_text(age_s: float | None) -> str:
    """Return how long ago a node sent its last heartbeat, from seconds. None is "never"."""
    if age_s is None:
        return "never"
    return f"{age_s:.1f} s ago" if age_s < 60 else f"{duration(age_s * 1e9)} ago"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an eviction would cost, in sentences. `allowed` is the hub's answer."""

    allowed: bool
    sentences: tuple[str, ...]


def plan(answer: JsonObject) -> Plan:
    """The hub's dry run in words."""
    node, standby = answer.get("node", "?"), answer.get("standby")
    ranks = ranks_text(answer.get("ranks"))
    if ranks == "-":
        return Plan(
            allowed=bool(answer.get("allowed", False)),
            sentences=(f"{node} runs no ranks: the job does not stop.", *_refusal(answer)),
        )
    lines = [
        f"{node} runs ranks {ranks} of {answer['job']}.",
        f"Its place goes to {standby}." if standby else _without_standby(answer),
    ]
    step, lost = answer.get("resume_step"), answer.get("lost_steps")
    if isinstance(step, int) and step >= 0:
        lines.append(
            f"The job resumes from step {step}; {lost} {'step is' if lost == 1 else 'steps are'} done again."
        )
    else:
        lines.append("No checkpoint is held by every rank: the job would start from its first step.")
    if answer.get("expected_s") is not None:
        lines.append(f"Expected pause: {duration(float(answer['expected_s']) * 1e9)}.")
    if price_sentence(answer):
        lines.append(price_sentence(answer))
    return Plan(allowed=bool(answer.get("allowed", False)), sentences=(*lines, *_refusal(answer)))


def _without_standby(answer: JsonObject) -> str:
    """What the hub says that the job does: one of nodes MIN:MAX may go on with fewer."""
    why = str(answer.get("why_not") or "") if answer.get("allowed", False) else ""
    return f"{why[:1].upper()}{why[1:]}." if why else "No standby is free."


def _refusal(answer: JsonObject) -> list[str]:
    if answer.get("allowed", False):
        return []
    return [f"The hub refuses: {answer.get('why_not') or 'no reason given'}."]
