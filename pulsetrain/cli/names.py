"""Names of jobs, nodes and alerts for the shell to complete. They never fail and never take long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import click
from click.shell_completion import CompletionItem

from pulsetrain.core.errors import PulsetrainError
from pulsetrain.protocol.client import HubClient, find_hub

TIMEOUT_S = 0.7
"""A person waits at the prompt."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _of_hub(names: Callable[[HubClient], Iterable[tuple[str, str]]]) -> Completer:
    """Return a completer of the names that a hub tells, each with a word about it."""

    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        given = context.params
        try:
            address = find_hub(given.get("hub"), given.get("token"), data=given.get("data"))
            found = list(names(HubClient(address, timeout_s=TIMEOUT_S)))
        except (PulsetrainError, LookupError, TypeError, ValueError):
            return []
        return [CompletionItem(name, help=about) for name, about in found if name.startswith(incomplete)]

    return complete


def _jobs(hub: HubClient) -> Iterator[tuple[str, str]]:
    status = hub.status()
    for job in [*status["jobs"], *status.get("past_jobs", ())]:
        yield job["job"], job["verdict"]["state"]


def _nodes(hub: HubClient) -> Iterator[tuple[str, str]]:
    for node in hub.nodes():
        yield node["node"], node["state"]


def _alerts(hub: HubClient) -> Iterator[tuple[str, str]]:
    for alert in hub.alerts():
        if alert["state"] != "resolved":
            yield alert["id"], f"{alert['kind']} {alert['subject']}"


job_names = _of_hub(_jobs)
node_names = _of_hub(_nodes)
alert_ids = _of_hub(_alerts)


def record_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of records."""
    from pulsetrain.records.schema import RECORDS

    return [CompletionItem(name) for name in RECORDS if name.startswith(incomplete)]
