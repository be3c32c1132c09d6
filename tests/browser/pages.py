"""Every page of the dashboard, as the fake hub's job fills it."""

from __future__ import annotations

PAGES = (
    "", "heatmap", "timeline", "topology", "incidents", "stacks", "alerts", "nodes", "rank?rank=5",
    "node?node=node-2", "logs", "metrics", "events", "recovery", "checkpoints", "pipeline", "pool",
)  # fmt: skip


def address(site: str, path: str) -> str:
    """Where a page stands, for the fake hub's job."""
    return f"{site}/{path}{'&' if '?' in path else '?'}job=gpt"
