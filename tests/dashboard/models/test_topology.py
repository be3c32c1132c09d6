"""Each rank's state in the mesh: who is at fault, who waits, who is silent."""

from __future__ import annotations

import json

import pytest

from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.topology import (
    SILENT_AFTER_NS,
    figure,
    matching,
    points,
    silent_after_ns,
    tally,
)

NOW = 1_000_000_000_000


def topology_row(rank, node="n0", **values):
    return {
        "attempt": 1, "rank": rank, "local_rank": rank % 2, "node": node, "ip": "10.0.0.1", "switch": "tor-7",
        "tp": rank % 2, "pp": rank // 2, "dp": 0, "cp": 0, "ep": 0, **values,
    }  # fmt: skip


def heartbeat(rank, age_ns=10**9, state="running", attempt=1):
    return {
        "rank": rank, "attempt": attempt, "state": state, "last_step": 9, "last_phase": "forward",
        "phase_age_ns": 2,
        "ts_ns": NOW - age_ns,
    }  # fmt: skip


def finding(subject_type, subject, severity="critical", victims=(), kind="hang"):
    return {
        "kind": kind,
        "subject_type": subject_type, "subject": subject, "severity": severity, "summary": f"{subject} it is",
        "evidence": json.dumps({"victims": list(victims)}),
    }  # fmt: skip


def states(findings, heartbeats=None, ranks=4):
    topology = [topology_row(r, node=f"n{r // 2}") for r in range(ranks)]
    if heartbeats is None:
        heartbeats = [heartbeat(r) for r in range(ranks)]
    return [p.state for p in points(topology, heartbeats, attribute(findings), now_ns=NOW)]


def test_culprit_and_victims_are_told_apart():
    assert states([finding("rank", "1", victims=[0, 1, 2])]) == ["victim", "culprit", "victim", "running"]


def test_a_node_at_fault_marks_its_ranks_and_a_warning_is_slow():
    assert states([finding("node", "n1", severity="warning")]) == ["running", "running", "slow", "slow"]


def test_a_straggler_is_slow_however_bad_it_is():
    assert states([finding("rank", "2", kind="straggler")])[2] == "slow"


def test_the_worse_of_two_findings_names_the_rank():
    findings = [finding("rank", "3"), finding("rank", "3", severity="warning")]
    assert states(findings)[3] == "culprit"


def test_info_accuses_nobody_and_odd_evidence_is_no_victim():
    odd = {**finding("rank", "1"), "evidence": "not json"}
    assert states([finding("rank", "0", severity="info"), odd]) == [
        "running",
        "culprit",
        "running",
        "running",
    ]


@pytest.mark.parametrize(
    ("heartbeats", "state"),
    [
        ([], "no_data"),
        ([heartbeat(0, age_ns=SILENT_AFTER_NS - 1)], "running"),
        ([heartbeat(0, age_ns=SILENT_AFTER_NS + 1)], "no_data"),
        ([heartbeat(0, attempt=0)], "no_data"),
        ([heartbeat(0, state="stopped")], "stopped"),
        ([heartbeat(0, state="zombie")], "gone"),
        ([heartbeat(0, state="sleeping")], "running"),
    ],
)
def test_silence_is_no_data_and_never_running(heartbeats, state):
    assert states([], heartbeats, ranks=1) == [state]


@pytest.mark.parametrize(("age_s", "state"), [(20, "running"), (80, "running"), (90, "no_data")])
def test_a_rank_whose_agent_reports_each_half_minute_is_not_silent_in_between(age_s, state):
    silent_ns = silent_after_ns({"usual_silence_s": 75.0})
    beats = [heartbeat(0, age_ns=age_s * 10**9)]
    (point,) = points([topology_row(0)], beats, attribute([]), now_ns=NOW, silent_ns=silent_ns)
    assert point.state == state


def test_search_finds_rank_node_address_and_switch():
    shown = points([topology_row(1), topology_row(11, node="n5")], [], attribute([]), now_ns=NOW)
    assert [p.rank for p in matching(shown, "1")] == [1]
    assert [p.rank for p in matching(shown, "rank 11")] == [11]
    assert [p.rank for p in matching(shown, "N5")] == [11]
    assert len(matching(shown, "tor-7")) == len(matching(shown, "")) == 2


def test_the_figure_has_one_legend_entry_a_state_and_rings_what_matches():
    shown = points(
        [topology_row(r) for r in range(4)], [heartbeat(r) for r in range(3)], attribute([]), now_ns=NOW
    )
    names = [t.name for t in figure(shown, {1}, LIGHT).data if t.showlegend is not False]
    assert names == ["● running (3)", "○ no data (1)", "found"]
    assert tally(shown) == "1 no data, 3 running"
