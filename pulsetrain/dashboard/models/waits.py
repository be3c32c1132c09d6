"""What the controller waits for with trouble of machines, as events and open findings of a job say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pulsetrain.core.json import JsonObject

_HELD = ("eviction_deferred", "eviction_refused")
_EVICTS = ("evict_at_step", "evict_now")
_SUSPICION_NS = 3600 * 10**9  # a suspicion that nobody could check is given up after that
_MOST_NAMED = 3


def waits(job: JsonObject, events: Sequence[JsonObject], now_ns: int) -> list[str]:
    """What is going to be done once something has happened, a sentence for each. `events`: newest first."""
    return [
        *_evictions(job, events),
        *_checks(events, now_ns, "links_suspected", "link_check", "It measures the links of {nodes}"),
        *_checks(
            events, now_ns, "arithmetic_suspected", "arithmetic_check", "It checks the arithmetic of {nodes}"
        ),
    ]


def detail_of(event: JsonObject) -> JsonObject:
    """The detail of an event. {} where it is not a JSON object."""
    try:
        detail = json.loads(event["detail"] or "{}")
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}


def names(nodes: Sequence[str]) -> str:
    """Nodes in a sentence, "all nodes" for none.

    >>> names(["a", "b", "c", "d", "e"]), names([])
    ('a, b, c and 2 more', 'all nodes')
    """
    shown = ", ".join(map(str, nodes[:_MOST_NAMED]))
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"{shown}{more}" or "all nodes"


def _evictions(job: JsonObject, events: Sequence[JsonObject]) -> Iterator[str]:
    """Evictions that an open finding asks for and that something holds back, a sentence for each node.

    An attempt writes each reason once, so the event may be hours old. What has ended it is no event: the
    finding closes, or the node leaves.
    """
    wanted = _to_go(job)
    for node, reason in wanted.items():
        held = next(
            (
                event
                for event in events
                if event["kind"] in _HELD
                and event["node"] == node
                and event.get("attempt") == job.get("attempt")
            ),
            None,
        )
        if held is not None:
            yield f"{_held(held['kind'], node, str(detail_of(held).get('why_not', '')))} {_sentence(reason)}"


def _held(kind: str, node: str, why_not: str) -> str:
    if kind == "eviction_refused":
        return f"It does not evict {node}: {why_not}."
    if why_not.startswith("no standby"):
        return f"It waits for a standby before it evicts {node}. The node trains on."
    if "checkpoint" in why_not:
        return f"It waits for a checkpoint that holds without {node}, then it evicts it."
    return f"It waits before it evicts {node}: {why_not}."


def _to_go(job: JsonObject) -> dict[str, str]:
    """The nodes that train and whose open findings ask for an eviction, with what was found."""
    training = {str(node["node"]) for node in job.get("nodes", []) if node.get("state") == "active"}
    found: dict[str, str] = {}
    for finding in job.get("findings", []):
        evidence = _evidence(finding)
        node = str(evidence.get("node", ""))
        if evidence.get("response") in _EVICTS and node in training:
            found.setdefault(node, str(finding.get("summary", "")))
    return found


def _evidence(finding: JsonObject) -> JsonObject:
    try:
        evidence = json.loads(finding.get("evidence") or "{}")
    except (ValueError, TypeError):
        return {}
    return evidence if isinstance(evidence, dict) else {}


def _checks(
    events: Sequence[JsonObject], now_ns: int, suspected: str, checked: str, words: str
) -> Iterator[str]:
    """The check that waits for the next stop of the job, because of what was suspected since the last one.

    A check that a person asked for leaves the controller's own open.
    """
    for event in events:
        if event["kind"] == checked and event.get("actor", "controller") == "controller":
            return
        if event["kind"] == suspected and now_ns - event["ts_ns"] < _SUSPICION_NS:
            detail = detail_of(event)
            what = words.format(nodes=names(detail.get("nodes") or []))
            when = detail.get("checked", "at the next stop of the job")
            yield f"{what} {when}: {_sentence(str(detail.get('reason', '')))}"
            return


def _sentence(text: str) -> str:
    """Text that ends as a sentence does."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
