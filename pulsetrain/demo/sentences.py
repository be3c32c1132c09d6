"""One line for each event and finding of the hub, for the demo's timeline. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pulsetrain.core.json import JsonObject


def event_line(row: Mapping[str, object]) -> str:
    """An event as one line; "" for kinds that the timeline leaves out.

    >>> event_line({"kind": "node_lost", "node": "node-d", "detail": '{"reason": "no heartbeat for 2.6 s"}'})
    'node-d is lost: no heartbeat for 2.6 s'
    """
    detail = _detail(row)
    node = row.get("node", "")
    match row["kind"]:
        case "attempt_started":
            return _attempt(row, detail)
        case "node_joined":
            return f"{node} joined from {detail.get('address', '?')}"
        case "node_lost":
            return f"{node} is lost: {detail.get('reason', '')}"
        case "rank_exit":
            return f"rank {row['rank']} on {node} ended with {_ending(detail.get('code'))}"
        case "self_check":
            return _self_check(detail)
        case "evict":
            return f"{node} is evicted: {detail.get('reason', '')}"
        case "standby_promoted":
            return f"{node} takes the place of {detail.get('replaces', '?')}"
        case "shrink" | "grow":
            return f"goes on with {detail.get('to', '?')} nodes in place of {detail.get('from', '?')}"
        case "recovery":
            seconds = detail.get("total_ns", 0) / 1e9
            return f"training again {seconds:.1f} s after the fault: {detail.get('reason', '')}"
        case "waiting":
            return f"waiting for {detail.get('missing_nodes', '?')} more nodes"
        case "job_finished" | "job_failed":
            return str(detail.get("reason", row["kind"]))
        case _:
            return ""


def finding_line(row: JsonObject) -> str:
    """A finding as one line, with its kind in capitals and its confidence in percent."""
    return f"{row['kind'].upper().replace('_', ' ')}: {row['summary']} ({row['confidence']:.0%} sure)"


def _attempt(row: Mapping[str, object], detail: JsonObject) -> str:
    nodes, step = ", ".join(detail.get("world", ())), detail.get("restore_step", -1)
    if step < 0:
        return f"attempt {row['attempt']} starts on {nodes}"
    sources = detail.get("sources", {}).values()
    tiers = sorted({str(s).partition(":")[0] for s in sources})
    return f"attempt {row['attempt']} starts on {nodes}, after step {step} from {' and '.join(tiers)}"


def _ending(code: object) -> str:
    return f"signal {-code}" if isinstance(code, int) and code < 0 else f"status {code}"


def _self_check(detail: JsonObject) -> str:
    failed, pairs = detail.get("failed", {}), len(detail.get("pairs", ()))
    checked = f"{len(detail.get('reports', {}))} nodes checked{f', {pairs} pairs' if pairs else ''}"
    told = [f"{node} fails ({why})" for node, why in failed.items()]
    told += [f"link {' to '.join(link['nodes'])} fails" for link in detail.get("links", ())]
    told += [f"inconclusive ({why})" for why in (detail.get("inconclusive"),) if why]
    return f"{checked}: {'; '.join(told) or 'all pass'}"


def _detail(row: Mapping[str, object]) -> JsonObject:
    try:
        detail = json.loads(str(row.get("detail") or "{}"))
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
