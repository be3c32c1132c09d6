"""The parts of the cluster benchmark: which points there are, what is reported, and a quick run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from clustered import agents, failing, failover, parts, report, simulated

from tests.repository import ROOT


def test_every_state_is_hit_as_often_as_any_other():
    points = failover.draw(seed=3, count=2 * len(failover.STATES))
    assert set(Counter(point.state for point in points).values()) == {2}
    assert points == failover.draw(seed=3, count=2 * len(failover.STATES))
    assert sum(point.member for point in points) == 2


def test_what_is_not_installed_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr(failover, "which", lambda program: None)
    (unit,) = parts.units(parts.Wanted(parts=("failover",)))
    said = report.result([{"unit": unit.name, **row} for row in unit.run(ROOT)])
    assert said["left_out"] == {"failover": "no etcd here: run deploy/test-services"}
    assert said["failover"]["points"] == 0


def point(seconds, *, spent=1, gone=1):
    return {
        "what": "point", "state": "checking", "seconds": seconds, "healed": seconds <= failover.HEALED_S,
        "spent": spent, "gone": gone, "victim_gone": gone > 0,
    }  # fmt: skip


def test_points_that_took_long_or_evicted_twice_are_counted():
    said = report.result([point(4.0), point(11.0), point(3.0, spent=2), point(2.0, spent=0, gone=0)])
    found = said["failover"]
    assert (found["points"], found["healed"], found["p95_s"]) == (4, 3, 11.0)
    assert (found["double_evictions"], found["not_evicted"], found["budget_kept"]) == (1, 1, False)
    assert said["slurm"] == {"evict_s": None, "lost_node_s": None}
    assert said["agents"] == 0


def size(agents, mib, cpu):
    return {
        "what": "agents", "unit": f"agents/{agents}", "agents": agents, "hub_mib": mib, "hub_cpu_ratio": cpu,
        "cpu_us": 100.0, "messages_per_node": 4.0, "launch_bytes_per_node": 780, "named_s": 1.1,
    }  # fmt: skip


def test_what_a_hub_needs_for_a_thousand_nodes_is_the_growth_from_the_smallest_size_to_the_largest():
    said = report.result([size(2500, 500, 0.5), size(500, 420, 0.1)])
    assert (said["hub_mib_per_1000_nodes"], said["hub_cpu_ratio_per_1000_nodes"]) == (40.0, 0.2)
    assert (said["agents"], said["launch_bytes_per_node"]) == (2500, 780)
    assert report.result([size(500, 420, 0.1)])["hub_cpu_ratio_per_1000_nodes"] is None


def test_a_simulated_fleet_joins_launches_and_names_a_lost_agent_in_virtual_time(tmp_path):
    rows = [
        {"unit": "simulated", **row}
        for count in (20, 60)
        for row in simulated.run(agents.Size(agents=count, steady_s=5.0), tmp_path / str(count))
    ]
    said = report.result(rows)["simulated"]
    assert (said["agents"], said["startup_messages_per_node"]) == (60, pytest.approx(4.0, abs=0.1))
    assert 1.0 < said["named_s"] < 3.0
    assert [size["agents"] for size in said["sizes"]] == [20, 60]
    for size in said["sizes"]:
        assert size["heartbeats_read_per_s"] == pytest.approx(size["agents"] + 1, rel=0.05)
        assert 0 < size["cpu_ratio_per_1000_nodes"] < 10


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.integration
def test_a_quick_run_counts_messages_at_start_up_and_names_a_lost_agent(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "cluster.py", "--quick", "--part", "agents"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["broken"], said["agents"]) == ([], 16)
    assert 4 <= said["startup_messages_per_node"] < 5
    assert said["agent_cpu_us"] > 0
    assert said["launch_bytes_per_node"] > 0
    assert said["named_s"] < 10


def test_jobs_that_fail_are_drawn_by_the_seed_in_every_way_by_one_node_and_by_none():
    cases = failing.draw(seed=3, count=16)
    assert cases == failing.draw(seed=3, count=16)
    assert {(case.way, case.by) for case in cases} == {(w, b) for w in failing.WAYS for b in ("one", "none")}
    assert all(case.most_attempts <= max(case.max_restarts + 1, failing.OFFENCES + 1) for case in cases)


def test_a_failing_job_is_right_only_if_it_ends_as_stated_and_leaves_nothing_behind():
    case = failing.Case(number=0, way="kill", by="one", standby=True, after=8, max_restarts=5)
    good = {"state": "finished", "attempts": 4, "evicted": ["j-n1"], "sentence": "Finished."}
    codes = {"j-n0": 0, "j-n1": 1}
    assert failing.judge(case, "j", good, codes, []) == []
    for worse in (
        {"state": "failed"},
        {"attempts": 5},
        {"evicted": []},
        {"evicted": ["j-n0"]},
        {"sentence": ""},
    ):
        assert len(failing.judge(case, "j", good | worse, codes, [])) == 1
    assert len(failing.judge(case, "j", good, codes | {"j-n0": None}, [])) == 1
    assert len(failing.judge(case, "j", good, codes, ["a rank"])) == 1
