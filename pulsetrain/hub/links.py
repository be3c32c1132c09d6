"""Rounds over the links of a job that a person asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pulsetrain.core.errors import UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.recovery.link_checks import BITS_PER_MBIT, LinkOptions, LinkReport
from pulsetrain.recovery.snapshot import JobSnapshot


class LinkSource(Protocol):
    """A job whose links can be measured."""

    def snapshot(self) -> JobSnapshot: ...
    async def measure_links(self, options: LinkOptions, actor: str) -> LinkReport: ...


class Links:
    """Measures links. All methods run on the hub's event loop."""

    def __init__(self, jobs: Mapping[str, LinkSource]) -> None:
        self._jobs = jobs

    async def measure(self, job: str, *, actor: str, limit_mbit: float = 0.0) -> JsonObject:
        """Measure the links between a job's nodes, and wait for the answer.

        {"job", "attempt", "phase", "state", "named": [{"kind", "name", "node", "reason", "broken"}],
        "reason", "rounds", "transfers", "nodes", "silent": {node: why}, "seconds", "transport", "rdma_ports",
        "why_tcp", "rails": {interface: what is not known of it}, "unmeasured"}. Raises `UsageError` for a job
        that is not known, has too few nodes or is busy.
        """
        source = self._jobs.get(job)
        if source is None:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UsageError(f"no job {job!r} runs here; jobs here: {known}")
        try:
            options = LinkOptions(bits_per_s=limit_mbit * BITS_PER_MBIT)
        except ValueError as error:
            raise UsageError(f"limit_mbit = {limit_mbit:g}: allowed 0 or more") from error
        before = source.snapshot()
        report = await source.measure_links(options, actor)
        facts: JsonObject = {"job": job, "attempt": before.attempt, "phase": str(before.phase)}
        return facts | report.detail()
