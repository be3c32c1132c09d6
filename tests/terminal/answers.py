"""Answers of a hub, as small as a test needs them."""

from __future__ import annotations

S = 10**9
NOW = 1_790_000_000 * S
URL = "http://head:8780"

NODES = [
    {"node": "node-10", "state": "active", "ranks": [2, 3], "last_heartbeat_age_s": 0.4, "reason": ""},
    {"node": "node-2", "state": "active", "ranks": [0, 1], "last_heartbeat_age_s": 0.3, "reason": ""},
    {"node": "node-3", "state": "lost", "ranks": [], "last_heartbeat_age_s": 70.0, "reason": "no heartbeat"},
    {"node": "spare", "state": "standby", "ranks": [], "last_heartbeat_age_s": 0.2, "reason": ""},
]
SLOWEST = {
    "steps": 30,
    "last_step": 1233,
    "ranks": [
        {"rank": 3, "node": "node-10", "stage": 0, "compute_s": 0.4567, "slower_ratio": 0.123},
        {"rank": 0, "node": "node-2", "stage": 0, "compute_s": 0.4, "slower_ratio": None},
    ],
    "nodes": [{"node": "node-10", "ranks": 2, "slower_ratio": 0.06}],
}
HANG = {
    "job": "gpt", "kind": "hang", "subject_type": "rank", "subject": "3", "severity": "critical",
    "confidence": 0.97, "summary": "Rank 3 hangs.", "evidence": "{}", "since_ns": NOW - 30 * S,
}  # fmt: skip
PENDING = {
    "rank": 3, "since_ns": NOW - 30 * S, "act_at_ns": NOW + 90 * S, "action": "restart",
    "why": "The job may only pause.",
}  # fmt: skip
INCIDENT = {"job": "gpt", "root": "rank 3", "suggested_action": "Read its stack."}


def job(name="gpt", says="healthy", **changes):
    """A job that runs, healthy unless a test says otherwise."""
    return {
        "job": name,
        "state": "running",
        "attempt": 1,
        "step": 1234,
        "world_size": 4,
        "failure": "",
        "verdict": {
            "state": says,
            "sentence": f"{name} is {says}.",
            "since_ns": NOW - 200 * S,
        },
        "pending_hang": None,
        "findings": [],
        "detectors": [],
        "nodes": NODES,
        "recoveries": [],
        "median_step_s": 0.82,
        "slowest": SLOWEST,
        **changes,
    }


def alert(**changes):
    """A critical alert that fires."""
    return {
        "id": "a1", "job": "gpt", "state": "firing", "severity": "critical", "kind": "hang",
        "subject_type": "rank", "subject": "3", "summary": "Rank 3 hangs.", "since_ns": NOW - 40 * S,
        "acknowledged_by": "", "muted": "", **changes,
    }  # fmt: skip


def status(*jobs, past=(), **hub):
    """A status with these jobs."""
    return {
        "hub": {"url": URL, "now_ns": NOW, "observe_only": False, **hub},
        "jobs": list(jobs),
        "past_jobs": list(past),
        "loops": [],
    }
