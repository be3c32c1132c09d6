"""Incidents: findings that belong together, with the root apart from its victims."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.incidents.locations import Topology
from pulsetrain.analytics.verdict import Finding

S = 1_000_000_000
T0 = 1_790_000_000 * S
TOPOLOGY = Topology(
    node_of={("j", r): f"n{r // 2}" for r in range(8)}, switch_of={"n0": "s0", "n1": "s0", "n2": "s1"}
)


def finding(kind, subject_type, subject, *, at=0.0, severity="critical", confidence=0.8, job="j", **evidence):
    return Finding(
        ts_ns=T0 + int(at * S),
        job=job,
        attempt=0,
        kind=kind,
        subject_type=subject_type,
        subject=subject,
        severity=severity,
        confidence=confidence,
        summary=f"{kind} of {subject_type} {subject}",
        evidence=evidence,
    )


def test_a_gpu_fault_is_the_root_of_the_crash_that_came_before_it_was_read():
    reported = [
        finding("hang", "rank", "0", at=1, confidence=0.6),
        finding("crash", "rank", "3", at=2),
        finding("gpu_fault", "gpu", "n1/PCI:0000:9b:00", at=3, job="", confidence=0.95),
    ]
    (incident,) = join(reported, TOPOLOGY, now_ns=T0 + 5 * S)
    assert incident["root"] == "gpu n1/PCI:0000:9b:00"
    assert incident["victims"] == ["rank 0", "rank 3"]
    assert incident["suggested_action"].startswith("Evict n1")
    assert [line["kind"] for line in incident["timeline"]] == ["hang", "crash", "gpu_fault"]
    assert (incident["job"], incident["state"]) == ("j", "open")


def test_a_hung_rank_is_the_root_and_those_who_wait_for_it_are_victims():
    reported = [
        finding("hang", "rank", "5", confidence=0.9, victims=[0, 1, 2]),
        finding("traffic_stop", "rank", "1", at=0.5, severity="warning", confidence=0.9),
    ]
    (incident,) = join(reported, TOPOLOGY, now_ns=T0)
    assert incident["root"] == "rank 5"
    assert incident["victims"] == ["rank 0", "rank 1", "rank 2"]


def test_a_switch_is_the_root_of_ports_and_ranks_under_it():
    reported = [finding("straggler", "rank", str(r), severity="warning") for r in range(4)]
    reported += [
        finding("port_down", "link", "switch/s0", at=2),
        finding("link_flap", "link", "n0/mlx5_0/1", at=1),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert incident["root"] == "link switch/s0"
    assert "rank 2" in incident["victims"]
    assert "link n0/mlx5_0/1" in incident["victims"]


RIDERS = [
    ("slow_link", "group", "dp:8", {"ranks": [3, 7], "nodes": ["n1", "n3"]}),
    ("stage_imbalance", "stage", "0", {"ranks": [0, 1, 2, 3]}),
]


@pytest.mark.parametrize(("kind", "subject_type", "subject", "members"), RIDERS)
@pytest.mark.parametrize("late", [-6, 6])
def test_what_a_slow_node_causes_is_part_of_its_incident(kind, subject_type, subject, members, late):
    reported = [
        finding("straggler", "node", "n1", severity="warning", ranks=[2, 3], nodes=["n1"]),
        finding(kind, subject_type, subject, at=late, severity="warning", confidence=0.95, **members),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert (incident["root"], incident["victims"]) == ("node n1", [f"{subject_type} {subject}"])


@pytest.mark.parametrize("severity", ["info", "warning"])
def test_a_slow_link_of_others_is_not_caused_by_a_slow_node(severity):
    """Nor is one of its own where the node is slower by so little that it is information."""
    where = {"ranks": [4, 6], "nodes": ["n2", "n3"]} if severity == "warning" else {"ranks": [3, 7]}
    reported = [
        finding("straggler", "node", "n1", severity=severity, ranks=[2, 3], nodes=["n1"]),
        finding("slow_link", "group", "dp:8", severity="warning", confidence=0.95, **where),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert incident["root"] == "group dp:8"
    assert "group dp:8" not in incident["victims"]


@pytest.mark.parametrize("late", [-30, 30])
@pytest.mark.parametrize(("ratio", "root"), [(1.015, "job j"), (1.29, "rank 3")])
def test_a_slow_rank_is_the_root_of_a_slow_job_only_where_it_is_slow_enough(ratio, root, late):
    reported = [
        finding("fail_slow", "job", "j", severity="info", confidence=0.57, slow_ratio=1.305),
        finding("straggler", "rank", "3", at=late, severity="info", confidence=0.75, ratio=ratio, ranks=[3]),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert incident["root"] == root
    assert incident["victims"] == ([] if root == "job j" else ["job j"])


@pytest.mark.parametrize(("share", "victims"), [(0.02, []), (0.2, ["rank 3"])])
def test_a_pause_has_for_victims_those_that_lose_about_as_much(share, victims):
    reported = [
        finding("gc_pause", "rank", "2", severity="warning", confidence=0.95, share=share),
        finding("straggler", "rank", "3", severity="info", confidence=0.1, ratio=1.2, ranks=[3]),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert (incident["root"], incident["victims"]) == ("rank 2", victims)


def test_a_node_that_computes_slowly_and_so_sends_slowly_is_called_slow():
    reported = [
        finding("slow_link", "node", "n1", severity="warning", confidence=0.95),
        finding("straggler", "node", "n1", severity="warning", confidence=0.8),
    ]
    (incident,) = join(reported, TOPOLOGY)
    assert incident["summary"] == "straggler of node n1"


def test_what_lies_apart_in_time_or_job_is_another_incident():
    reported = [
        finding("hang", "rank", "1"),
        finding("hang", "rank", "1", at=1000),
        finding("crash", "rank", "1", job="other"),
    ]
    incidents = join(reported, now_ns=T0 + 1001 * S)
    assert [(i["job"], i["state"]) for i in incidents] == [("j", "open"), ("j", "over"), ("other", "over")]
    assert len({i["id"] for i in incidents}) == 3


def test_an_incident_keeps_its_id_when_another_root_is_found():
    first = [finding("hang", "rank", "0", confidence=0.6)]
    later = [
        *first,
        finding("gpu_fault", "gpu", "n1/PCI:0000:9b:00", at=-1, job=""),
        finding("crash", "rank", "3", at=2),
    ]
    (before,), (after,) = join(first, TOPOLOGY), join(later, TOPOLOGY)
    assert before["root"] != after["root"]
    assert before["id"] == after["id"]


def test_a_fault_without_a_job_alone_is_an_incident():
    (incident,) = join([finding("gpu_fault", "gpu", "n9/x", job="")])
    assert (incident["root"], incident["victims"], incident["job"]) == ("gpu n9/x", [], "")


def test_hypotheses_are_ranked_and_leave_room_for_something_else():
    reported = [
        finding("straggler", "rank", "1", confidence=0.7),
        finding("straggler", "rank", "2", confidence=0.3),
    ]
    (incident,) = join(reported)
    shares = [h["confidence"] for h in incident["hypotheses"]]
    assert sum(shares) == pytest.approx(1.0, abs=0.01)
    assert shares[:-1] == sorted(shares[:-1], reverse=True)
    assert incident["hypotheses"][-1]["root"] == "something else"
    assert shares[-1] >= 0.25


def test_nothing_gives_nothing_and_odd_confidences_do_not_break_it():
    assert join([]) == []
    (incident,) = join([finding("odd_kind", "group", "dp0", confidence=float("nan"))])
    assert incident["root"] == "group dp0"
    assert incident["hypotheses"][-1]["confidence"] == 1.0


def test_the_action_that_a_finding_brings_wins():
    (incident,) = join([finding("gpu_fault", "gpu", "n0/x", suggested_action="Reset the GPU.")])
    assert incident["suggested_action"] == "Reset the GPU."


KINDS = st.sampled_from(["hang", "crash", "straggler", "gpu_fault", "link_flap", "nan", "unheard_of"])


@given(
    drawn=st.lists(st.tuples(KINDS, st.integers(0, 7), st.floats(0, 300), st.floats(0, 1)), max_size=12),
    seed=st.integers(0, 99),
)
def test_the_order_and_the_number_of_copies_change_nothing(drawn, seed):
    reported = [finding(k, "rank", str(r), at=t, confidence=c) for k, r, t, c in drawn]
    mixed = [*reported, *reported[:3]]
    random.Random(seed).shuffle(mixed)
    assert join(mixed, TOPOLOGY) == join(reported, TOPOLOGY)


@given(shift=st.integers(1, 100))
def test_renaming_ranks_renames_the_root_and_its_victims(shift):
    reported = [finding("crash", "rank", "1"), finding("hang", "rank", "2", confidence=0.3, victims=[4])]
    moved = [
        finding("crash", "rank", str(1 + shift)),
        finding("hang", "rank", str(2 + shift), confidence=0.3, victims=[4 + shift]),
    ]
    (a,), (b,) = join(reported), join(moved)
    assert b["root"] == f"rank {1 + shift}"
    assert {int(v.split()[1]) + shift for v in a["victims"]} == {int(v.split()[1]) for v in b["victims"]}


def test_a_storm_is_joined_in_a_moment():
    reported = [finding("straggler", "rank", str(r), severity="warning") for r in range(3000)]
    reported.append(finding("node_lost", "node", "n7", at=1))
    (incident,) = join(reported)
    assert len(incident["timeline"]) == 3001


def test_a_worse_finding_never_makes_the_incident_milder():
    order = {"info": 0, "warning": 1, "critical": 2}
    beside = finding("mfu_decay", "job", "j", severity="info", confidence=0.6)
    rated = []
    for severity in order:
        for confidence in (0.5, 0.7, 0.9):
            reported = [finding("straggler", "rank", "3", severity=severity, confidence=confidence), beside]
            (incident,) = join(reported, TOPOLOGY)
            rated.append((order[incident["severity"]], incident["hypotheses"][0]["confidence"]))
            assert incident["root"] == "rank 3"
    assert [r[0] for r in rated] == sorted(r[0] for r in rated)
    for at in (0, 3, 6):
        assert [r[1] for r in rated[at : at + 3]] == sorted(r[1] for r in rated[at : at + 3])
