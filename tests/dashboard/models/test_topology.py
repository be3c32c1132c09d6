"""Each rank's state in the mesh: who is at fault, who waits, who is silent."""

from __future__ import annotations

import json

import pytest

from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.topology import blame, figure, matching, points, tally

NOW = 1_000_000_000_000


def place(rank, node="n0", **values):
    return {
        "attempt": 1, "rank": rank, "local_rank": rank % 2, "node": node, "ip": "10.0.0.1", "switch": "tor-7",
        "tp": rank % 2, "pp": rank // 2, "dp": 0, "cp": 0, "ep": 0, **values,
    }  # fmt: skip


def beat(rank, age_ns=10**9, state="running", attempt=1):
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


def states(findings, beats=None, ranks=4):
    places = [place(r, node=f"n{r // 2}") for r in range(ranks)]
    found = points(
        places, [beat(r) for r in range(ranks)] if beats is None else beats, blame(findings), now_ns=NOW
    )
    return [p.state for p in found]


def test_culprit_and_victims_are_told_apart():
    assert states([finding("rank", "1", victims=[0, 1, 2])]) == ["victim", "culprit", "victim", "running"]


def test_a_node_at_fault_marks_its_ranks_and_a_warning_is_slow():
    assert states([finding("node", "n1", severity="warning")]) == ["running", "running", "slow", "slow"]


def test_a_straggler_is_slow_however_bad_it_is():
    assert states([finding("rank", "2", kind="straggler")])[2] == "slow"


def test_the_worse_of_two_findings_names_the_rank():
    found = [finding("rank", "3"), finding("rank", "3", severity="warning")]
    assert states(found)[3] == "culprit"


def test_info_accuses_nobody_and_odd_evidence_is_no_victim():
    odd = {**finding("rank", "1"), "evidence": "not json"}
    assert states([finding("rank", "0", severity="info"), odd]) == [
        "running",
        "culprit",
        "running",
        "running",
    ]


@pytest.mark.parametrize(
    ("beats", "state"),
    [
        ([], "no_data"),
        ([beat(0, age_ns=6 * 10**9)], "no_data"),
        ([beat(0, attempt=0)], "no_data"),
        ([beat(0, state="stopped")], "stopped"),
        ([beat(0, state="zombie")], "gone"),
        ([beat(0, state="sleeping")], "running"),
    ],
)
def test_silence_is_no_data_and_never_running(beats, state):
    assert states([], beats, ranks=1) == [state]


def test_search_finds_rank_node_address_and_switch():
    found = points([place(1), place(11, node="n5")], [], blame([]), now_ns=NOW)
    assert [p.rank for p in matching(found, "1")] == [1]
    assert [p.rank for p in matching(found, "rank 11")] == [11]
    assert [p.rank for p in matching(found, "N5")] == [11]
    assert len(matching(found, "tor-7")) == len(matching(found, "")) == 2


def test_the_figure_has_one_legend_entry_a_state_and_rings_what_was_found():
    found = points([place(r) for r in range(4)], [beat(r) for r in range(3)], blame([]), now_ns=NOW)
    names = [t.name for t in figure(found, {1}, LIGHT).data if t.showlegend is not False]
    assert names == ["● running (3)", "○ no data (1)", "found"]
    assert tally(found) == "1 no data, 3 running"
