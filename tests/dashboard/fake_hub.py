"""A hub's JSON API over canned state, beside the real query routes over a real store. Its nodes can be
evicted."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pulsetrain.analytics.hangs.stacks import MAIN, RankStack, compare, tree
from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.protocol.messages import GroupStatus, Heartbeat, RankStatus
from pulsetrain.records.findings import Finding
from pulsetrain.recovery.rank_view import RankRow, rank_row
from pulsetrain.stream.store import server
from pulsetrain.stream.store.clickhouse import Store, open_store
from tests.dashboard.recorded_job import STUCK_RANK, RecordedJob, table

TOKEN = "test-token"


@dataclass
class FakeHub:
    """What the API answers; tests change it while it serves."""

    job: RecordedJob
    state: str = "hung"
    sentence: str = f"Rank {STUCK_RANK} is stopped in forward; 7 others wait for it."
    jobs: bool = True
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    evictions: list[dict[str, Any]] = field(default_factory=list)
    silences: dict[str, dict[str, Any]] = field(default_factory=dict)
    stack_reads: int = 0
    pending: dict[str, Any] | None = None
    decisions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, state, ranks in (
            ("node-0", "active", [0, 1]), ("node-1", "lost", []), ("node-2", "active", [4, 5]),
            ("node-3", "active", [6, 7]), ("node-4", "active", [2, 3]), ("node-5", "standby", []),
        ):  # fmt: skip
            self.nodes[name] = {
                "node": name, "job": self.job.name, "state": state, "connected": state != "lost",
                "node_rank": ranks[0] // 2 if ranks else -1, "ranks": ranks,
                "address": f"127.0.0.1{name[-1]}",
                "pid": 4000, "last_heartbeat_age_s": 71.5 if state == "lost" else 0.4,
                "reason": "connection closed" if state == "lost" else "",
                "gauges": {"spool_bytes": 40960.0, "dropped_rows": 0.0, "cpu_ratio": 0.021},
            }  # fmt: skip
        for kind, severity, subject in (
            ("hang", "critical", f"rank {STUCK_RANK}"),
            ("straggler", "warning", "node node-2"),
        ):
            self.alerts.append({
                "id": f"a-{kind}", "state": "firing", "severity": severity, "kind": kind, "subject": subject,
                "summary": f"{subject} needs a look.", "since": (self.job.now_ns - 9_000_000_000) / 1e9,
                "count": 3,
                "acknowledged_by": "",
            })  # fmt: skip

    def status(self) -> dict[str, Any]:
        verdict = {
            "state": self.state,
            "sentence": self.sentence,
            "since_ns": self.job.now_ns - 8_000_000_000,
        }
        findings = [dict(row) for row in reversed(self.job.findings()) if self.state in ("hung", "slow")]
        for row in findings:
            row.setdefault("evidence", "{}")
        job = {
            "job": self.job.name, "state": "running", "attempt": 1, "step": self.job.steps - 1,
            "world_size": 8, "pending_hang": self.pending,
            "nodes": list(self.nodes.values()), "recoveries": [{}], "verdict": verdict, "findings": findings,
            "detectors": [
                {"state": "healthy", "analyzer": "hang", "numbers": {}},
                {"state": "blind", "analyzer": "network", "reason": "no sample of an RDMA port"},
                {"state": "finding", "analyzer": "straggler", "summary": "node-2 is slow"},
            ],
        }  # fmt: skip
        facts = {
            "version": "test",
            "pid": 1,
            "started_ns": self.job.began_ns,
            "watch_failures": 0,
            "written_rows": 0,
            "unwritten_rows": 0,
        }
        if not self.jobs:
            return {"hub": facts, "jobs": []}
        return {"hub": facts, "jobs": [job], "pool": self.pool()}

    def pool(self) -> dict[str, Any]:
        """A pool of four machines with the job, and with one that waits."""
        shared = {"tier": "basic", "promised": False, "hour_share": None, "why_waits": ""}
        return {
            "machines": {f"node-{number}": {"devices": 4, "used": 2} for number in (0, 2, 3, 4)},
            "jobs": [
                {"job": self.job.name, **shared, "tier": "premium", "devices": 8, "most_devices": 8},
                {"job": "sweep", **shared, "devices": 0, "most_devices": 2, "why_waits": "no room"},
            ],
            "actions": [
                {"ts_ns": self.job.began_ns, "what": "start", "job": self.job.name, "from": {},
                 "to": {"node-0": 2}, "reason": "it came first", "price_device_s": 0.0}
            ],
        }  # fmt: skip

    def incidents(self) -> list[dict[str, Any]]:
        """The stories that the real code makes of the job's findings."""
        rows = [{**row, "evidence": json.loads(row.get("evidence", "{}"))} for row in self.job.findings()]
        names = {f.name for f in dataclasses.fields(Finding)}
        found = [Finding(ts_ns=r["ts"], **{k: v for k, v in r.items() if k in names}) for r in rows]
        return join(found, now_ns=self.job.now_ns)

    def stacks(self) -> dict[str, Any]:
        """What the hub knows of the stacks once somebody asked."""
        if not self.stack_reads:
            return {}
        groups = [("dp", tuple(range(8)))]
        wait = ("train (train.py:40)", "all_reduce (distributed/distributed_c10d.py:3104)")
        stuck = ("train (train.py:38)", "forward (model.py:71)")
        others = tuple(r for r in range(8) if r not in (STUCK_RANK, 7))
        held = [
            RankStack(thread=MAIN, frames=wait, ranks=others),
            RankStack(thread=MAIN, frames=stuck, ranks=(STUCK_RANK,)),
        ]
        seen = compare(held, groups, {7: "its process is gone"}).brief()
        facts = {"job": self.job.name, "attempt": 1, "ts_ns": self.job.now_ns, "why": "tester"}
        return {**facts, **seen, "tree": tree(held)}

    def rank(self, rank: int) -> RankRow:
        """What the real code makes of a heartbeat. All but the stuck rank wait in an all-reduce."""
        busy = {"op": "all_reduce", "op_seq": 120, "op_bytes": 4 << 20, "op_age_ns": 7_000_000_000}
        groups = [
            GroupStatus(group=name, members=members, enqueued=119, completed=119)
            for name, members in (
                ("mesh_tp:1", tuple(sorted({rank, rank ^ 1}))),
                ("mesh_pp:3", tuple(sorted({rank, rank ^ 2}))),
            )
        ]
        waits = {**busy, "enqueued": 120} if rank != STUCK_RANK else {"enqueued": 119}
        pair = tuple(sorted({rank, rank ^ 4}))
        groups.append(GroupStatus(group="mesh_dp:5", members=pair, completed=119, timeout_s=600, **waits))
        status = RankStatus(
            rank=rank, local_rank=rank % 2, pid=1000 + rank, state="running", last_step=119,
            last_phase="all_reduce", phase_age_ns=7_000_000_000, progress=9, progress_age_ns=7_000_000_000,
            groups=tuple(groups),
        )  # fmt: skip
        node, now_ns = self.job.node(rank, 1), time.time_ns()
        beat = Heartbeat(node=node, seq=1, ts_ns=now_ns, job=self.job.name, attempt=1, ranks=(status,))
        return rank_row(self.job.name, 1, rank, node, beat, now_ns)

    def evict(self, body: dict[str, Any]) -> dict[str, Any]:
        node = self.nodes[body["node"]]
        answer = {
            "node": body["node"], "job": self.job.name, "ranks": node["ranks"], "standby": "node-5",
            "resume_step": self.job.steps - 1, "lost_steps": 1, "expected_s": 3.8, "allowed": True,
            "why_not": "",
        }  # fmt: skip
        if not body["dry_run"]:
            self.evictions.append(body)
            standby = self.nodes["node-5"]
            standby.update(state="active", ranks=node["ranks"], node_rank=node["node_rank"])
            node.update(state="evicted", ranks=[], node_rank=-1, reason=body["reason"])
        return answer


def application(hub: FakeHub, store: Store) -> Starlette:
    """The hub's routes."""

    async def status(request: Request) -> Response:
        return JSONResponse(hub.status())

    async def nodes(request: Request) -> Response:
        return JSONResponse({"nodes": list(hub.nodes.values()) if hub.jobs else []})

    async def alerts(request: Request) -> Response:
        return JSONResponse({"alerts": hub.alerts if hub.jobs else []})

    async def acknowledge(request: Request) -> Response:
        body = await request.json()
        for alert in hub.alerts:
            if alert["id"] == request.path_params["alert"]:
                alert["acknowledged_by"] = body["actor"]
        return JSONResponse({})

    async def silences(request: Request) -> Response:
        return JSONResponse({"silences": list(hub.silences.values())})

    async def silence(request: Request) -> Response:
        body = await request.json()
        name = f"s{len(hub.silences)}"
        hub.silences[name] = {
            "id": name, "matchers": body["matchers"], "author": body["actor"], "comment": body["comment"],
            "expires_ns": time.time_ns() + int(body["seconds"] * 1e9),
        }  # fmt: skip
        _mute(hub)
        return JSONResponse(hub.silences[name])

    async def end_silence(request: Request) -> Response:
        hub.silences.pop(request.path_params["silence"])
        _mute(hub)
        return JSONResponse({})

    async def incidents(request: Request) -> Response:
        return JSONResponse({"incidents": hub.incidents() if hub.jobs else []})

    async def stacks(request: Request) -> Response:
        hub.stack_reads += request.method == "POST"
        return JSONResponse(hub.stacks())

    async def rank(request: Request) -> Response:
        return JSONResponse(hub.rank(request.path_params["rank"]))

    async def evict(request: Request) -> Response:
        return JSONResponse(hub.evict(await request.json()))

    async def decide(request: Request) -> Response:
        body = await request.json()
        answer = {"job": hub.job.name, "can_do": hub.pending is not None, "pending_hang": hub.pending}
        if not body["dry_run"]:
            hub.decisions.append(body)
            hub.pending = None
        return JSONResponse({**answer, "decision": body["decision"], "dry_run": body["dry_run"]})

    async def decided(request: Request) -> Response:
        return JSONResponse({"decisions": hub.decisions})

    return Starlette(
        routes=[
            Route("/v1/status", status),
            Route("/v1/nodes", nodes),
            Route("/v1/alerts", alerts),
            Route("/v1/alerts/{alert}/ack", acknowledge, methods=["POST"]),
            Route("/v1/silences", silences, methods=["GET"]),
            Route("/v1/silences", silence, methods=["POST"]),
            Route("/v1/silences/{silence}/end", end_silence, methods=["POST"]),
            Route("/v1/incidents", incidents),
            Route("/v1/jobs/{job}/stacks", stacks, methods=["GET", "POST"]),
            Route("/v1/jobs/{job}/ranks/{rank:int}", rank),
            Route("/v1/evict", evict, methods=["POST"]),
            Route("/v1/jobs/{job}/pending_hang", decide, methods=["POST"]),
            Route("/v1/decisions", decided),
            *server.routes(store, token=TOKEN),
        ]
    )


def _mute(hub: FakeHub) -> None:
    """What the book of alerts does for a silence on one subject."""
    for alert in hub.alerts:
        covering = [
            s for s in hub.silences.values() if all(str(alert.get(k)) == v for k, v in s["matchers"].items())
        ]
        alert["muted"] = f"silenced by {covering[0]['author']}" if covering else ""


def fill(store: Store, job: RecordedJob) -> None:
    """Migrate the store and put the job's rows into it."""
    store.migrate()
    for record, rows in job.tables().items():
        store.insert(record, rows)


@contextmanager
def serving(hub: FakeHub, folder: Path, *, empty: bool = False) -> Iterator[str]:
    """The hub on a free loopback port, in a thread; yields its URL."""
    store = open_store(f"chdb://{folder}")
    if empty:
        store.migrate()
    else:
        fill(store, hub.job)
    uvicorn_server = uvicorn.Server(
        uvicorn.Config(application(hub, store), host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=uvicorn_server.run, daemon=True)
    thread.start()
    beating = threading.Event()
    beats = threading.Thread(target=_beat, args=(hub, store, beating), daemon=True)
    beats.start()
    try:
        yield f"http://127.0.0.1:{_port(uvicorn_server, thread)}"
    finally:
        uvicorn_server.should_exit = True
        beating.set()
        thread.join(10)
        beats.join(10)
        store.close()


def _beat(hub: FakeHub, store: Store, stop: threading.Event) -> None:
    """The agents' heartbeats, one a second, while the hub has its job."""
    while not stop.wait(1.0):
        if hub.jobs:
            store.insert("heartbeats", table("heartbeats", list(hub.job.heartbeats(time.time_ns()))))


def _port(uvicorn_server: uvicorn.Server, thread: threading.Thread) -> int:
    while thread.is_alive():
        if uvicorn_server.started:
            return int(uvicorn_server.servers[0].sockets[0].getsockname()[1])
        thread.join(0.02)
    raise RuntimeError("the fake hub did not start")


def main(folder: str, *flags: str) -> None:
    """Serve until killed; print the URL. `empty`: no job and no rows. `pending`: a hang waits for a decision.

    It is a process of its own, because chDB opens one folder.
    """
    empty = "empty" in flags
    hub = FakeHub(job=RecordedJob(now_ns=time.time_ns()), jobs=not empty)
    if "pending" in flags:
        hub.pending = {
            "rank": STUCK_RANK, "since_ns": hub.job.now_ns - 8_000_000_000, "act_at_ns": None,
            "action": "tell", "why": "The job may only pause.", "condition": "waits", "place": "",
            "decisions": ["wait", "now"],
        }  # fmt: skip
    with serving(hub, Path(folder), empty=empty) as url:
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
