"""Jobs and nodes as JSON."""

import json

from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.view import job_row, node_rows
from tests.recovery.builders import S, heartbeat, hello, job_snapshot, node_snapshot


def test_a_node_of_the_world_has_its_ranks_and_a_standby_has_none():
    standby = node_snapshot("z", state=NodeState.STANDBY, heartbeat=None, heard_age_s=0.12345)
    active = node_snapshot("b", heartbeat=heartbeat("b", gauges={"spool_bytes": 7.0}))
    job = job_snapshot(nodes=(active, standby))
    row, _ = node_rows(job)
    assert (row["node_rank"], row["ranks"], row["gauges"]) == (1, [2, 3], {"spool_bytes": 7.0})
    _, row = node_rows(job)
    assert (row["node_rank"], row["ranks"], row["gauges"], row["state"]) == (-1, [], {}, "standby")
    assert row["last_heartbeat_age_s"] == 0.123
    (row,) = node_rows(job_snapshot(nodes=(node_snapshot("a", state=NodeState.LOST, gone_since_ns=7 * S),)))
    assert row["gone_since_ns"] == 7 * S


def test_a_job_is_plain_json():
    row = job_row(job_snapshot(phase=Phase.FAILED, failure="exit code 7"))
    assert json.loads(json.dumps(row)) == row
    assert (row["state"], row["failure"], row["step"], row["world_size"]) == ("failed", "exit code 7", 5, 4)
    assert [node["node"] for node in row["nodes"]] == ["a", "b"]


def test_a_job_says_how_long_its_slowest_agent_is_usually_silent():
    nodes = [node_snapshot(name, hello=hello(name, heartbeat_ns=s * S)) for name, s in (("a", 1), ("b", 30))]
    assert job_row(job_snapshot(nodes=tuple(nodes)))["usual_silence_s"] == 75.0
