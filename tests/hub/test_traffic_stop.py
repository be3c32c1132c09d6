"""A stop of traffic: a hang where nothing else is known, evidence where the ranks say more."""

import dataclasses

import pytest

from pulsetrain.hub.traffic_stop import find, stopped_for_s, with_evidence
from pulsetrain.protocol.messages import GroupStatus, RankActivity
from pulsetrain.recovery.hang_patience import HangPatience
from tests.recovery.builders import S, heartbeat, job_snapshot, node_snapshot, status


def node(name, first, stopped_s=60.0, progress=0, activity=(), usual=1e9):
    ranks = [status(r, progress=progress, progress_age_ns=100 * S, last_phase="") for r in (first, first + 1)]
    gauges = {"traffic_stopped_s": stopped_s, "traffic_bytes_per_s": usual}
    beat = heartbeat(name, *ranks, gauges=gauges, activity=activity)
    return node_snapshot(name, heartbeat=beat)


IN_FLIGHT = (GroupStatus(group="dp", members=(0, 1, 2, 3), enqueued=8, completed=7, op="all_reduce"),)


def job(*nodes):
    return job_snapshot(nodes=nodes)


def test_a_job_of_which_nothing_is_recorded_hangs_where_its_traffic_stopped():
    finding = find(job(node("a", 0), node("b", 2, stopped_s=50.0)))
    assert (finding.kind, finding.subject_type, finding.severity) == ("hang", "job", "critical")
    assert finding.summary == "The job hangs: no port has carried its traffic for 50 s"
    assert (finding.evidence["condition"], finding.evidence["certain"]) == ("unknown", False)
    assert finding.evidence["nodes"] == ["a", "b"]


def moves(rank):
    return RankActivity(rank=rank, cpu_ratio=0.1, helper_cpu_ratio=0.0, io_bytes_s=5e7, still_ns=0)


@pytest.mark.parametrize(
    "nodes",
    [
        (node("a", 0), node("b", 2, stopped_s=0.0)),
        (node("a", 0),),
        (node("a", 0, progress=9), node("b", 2, progress=9)),
        (node("a", 0, activity=(moves(0),)), node("b", 2)),
    ],
    ids=["one node carries traffic", "one node is silent", "ranks say more", "a rank reads"],
)  # fmt: skip
def test_no_hang_is_named(nodes):
    assert find(job(*nodes)) is None


def waiting(name, first, *, phase="all_reduce", age_s=60, stopped_s=60.0, activity=(), **more):
    fields = {"progress": 9, "progress_age_ns": age_s * S, "last_phase": phase} | more
    ranks = [status(r, **fields) for r in (first, first + 1)]
    gauges = {"traffic_stopped_s": stopped_s, "traffic_bytes_per_s": 1e9}
    return node_snapshot(name, heartbeat=heartbeat(name, *ranks, gauges=gauges, activity=activity))


def test_ranks_that_all_wait_in_a_collective_without_traffic_hang_in_the_network():
    finding = find(job(waiting("a", 0), waiting("b", 2)), usual_ns=7 * S)
    assert (finding.evidence["condition"], finding.evidence["class"]) == ("network", "network")
    assert (finding.evidence["usual_ns"], finding.evidence["culprits"]) == (7 * S, [])
    assert finding.summary.endswith("for 60 s, and every rank waits in a collective")
    patience = HangPatience(45.0, 600.0)
    assert patience.look([finding], S, can_resume=True) is None
    assert patience.pending.act_at_ns == 46 * S


def test_a_rank_whose_program_went_on_to_its_step_waits_for_what_is_in_flight():
    went_on = waiting("b", 2, phase="backward", groups=IN_FLIGHT)
    assert find(job(waiting("a", 0), went_on)).evidence["condition"] == "network"


def computes(rank):
    return RankActivity(rank=rank, cpu_ratio=0.0, helper_cpu_ratio=1.0, io_bytes_s=0.0, still_ns=0)


@pytest.mark.parametrize(
    "other",
    [
        waiting("b", 2, phase="evaluate"),
        waiting("b", 2, phase="checkpoint"),
        waiting("b", 2, phase="evaluate", groups=IN_FLIGHT),
        waiting("b", 2, phase="forward"),
        waiting("b", 2, age_s=5),
        waiting("b", 2, state="stopped"),
        waiting("b", 2, stopped_s=0.0),
        waiting("b", 2, activity=(moves(2),)),
        waiting("b", 2, activity=(computes(2),)),
        node_snapshot("b", heartbeat=heartbeat("b", gauges={"traffic_stopped_s": 60.0})),
    ],
    ids=[
        "evaluates",
        "saves",
        "evaluates meanwhile",
        "computes",
        "moved",
        "stopped",
        "traffic",
        "reads",
        "compiles",
        "no ranks",
    ],
)
def test_one_rank_that_does_not_wait_is_enough_for_no_hang(other):
    assert find(job(waiting("a", 0), other)) is None


@pytest.mark.parametrize("does", [{"cpu_ratio": 1.0}, {"waits_in": "poll"}])
def test_ranks_that_may_not_have_looked_at_their_devices_are_left_to_who_reads_their_stacks(does):
    ended = {"groups": tuple(dataclasses.replace(g, on_device=True) for g in IN_FLIGHT), "phase": "step"}
    idle = {"cpu_ratio": 0.0, "helper_cpu_ratio": 0.0, "io_bytes_s": 0.0, "still_ns": 60 * S}
    activity = (RankActivity(rank=0, **(idle | does)),)
    assert find(job(waiting("a", 0, activity=activity, **ended), waiting("b", 2, **ended))) is None
    assert find(job(waiting("a", 0, **ended), waiting("b", 2, **ended))) is not None


def test_a_node_that_knows_no_usual_traffic_says_nothing():
    unknown = node_snapshot("b", status(2), status(3))
    assert stopped_for_s(job(node("a", 0), unknown)) == 0.0


def test_a_hang_that_is_named_already_has_the_stop_as_evidence():
    stopped = job(node("a", 0), node("b", 2))
    hang = dataclasses.replace(find(stopped), subject_type="rank", subject="3")
    other = dataclasses.replace(hang, kind="crash")
    told, same = with_evidence(stopped, [hang, other])
    assert (told.subject, told.evidence["traffic_stopped_s"]) == ("3", 60.0)
    assert same == other


def test_a_job_that_carries_traffic_keeps_its_findings_as_they_are():
    flowing = job(node("a", 0, stopped_s=0.0), node("b", 2))
    assert with_evidence(flowing, []) == []


def test_a_program_that_computes_does_not_hang():
    busy = RankActivity(rank=0, cpu_ratio=1.0, helper_cpu_ratio=0.0, io_bytes_s=0.0, still_ns=0)
    assert find(job(node("a", 0, activity=(busy,)), node("b", 2))) is None
    assert find(job(waiting("a", 0, activity=(busy,)), waiting("b", 2))) is not None
