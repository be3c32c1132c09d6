"""The sentence that says how a job is."""

from dataclasses import replace

import pytest

from pulsetrain.hub.summary import summarize
from pulsetrain.protocol.messages import NOT_READ
from pulsetrain.recovery import faults
from pulsetrain.recovery.hang_patience import PendingHang
from pulsetrain.recovery.move_request import Move, MoveRequest
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.resizing import Resizing
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.hub.fakes import finding
from tests.recovery.builders import S, heartbeat, hello, job_snapshot, node_snapshot, rank_exit, status, world

FAULT = faults.rank_failed(rank_exit(3, -9), S)
MOVE = Move(
    request=MoveRequest(what="preempt", reason="noon", actor="ann"),
    asked_ns=0, asked_s=0.0, newer_than=9, from_step=9,
)  # fmt: skip
LOST = node_snapshot("b", state=NodeState.LOST, connected=False)


def test_a_job_that_names_no_steps_has_no_step_of_minus_one():
    silent = heartbeat("a", *(status(r, last_step=-1) for r in range(2)))
    told = summarize(job_snapshot(world=world("a"), nodes=(node_snapshot("a", heartbeat=silent),)), [])
    assert told["sentence"] == "Healthy: no step known, 2 ranks, no fault seen."


def test_information_makes_no_job_slow():
    told = summarize(job_snapshot(), [finding("fail_slow", severity="info", summary="Rank 1 became slower.")])
    assert told["state"] == "healthy"
    assert told["sentence"].endswith("no fault seen. To know: Rank 1 became slower.")


@pytest.mark.parametrize(
    ("changes", "state", "sentence"),
    [
        ({}, "healthy", "Healthy: step 5, 4 ranks, no fault seen."),
        (
            {"phase": Phase.FORMING, "nodes": (node_snapshot("a"),)},
            "forming",
            "Waiting for nodes: 1 of 2 joined.",
        ),
        (
            {
                "phase": Phase.FORMING,
                "nodes": (
                    node_snapshot("a"),
                    node_snapshot("b", heartbeat=heartbeat("b", stored_attempt=NOT_READ)),
                ),
            },
            "forming",
            "Waiting until 1 of 2 nodes have read the storage of its checkpoints.",
        ),
        ({"phase": Phase.STARTING}, "starting", "Starting."),
        (
            {"phase": Phase.STARTING, "fault": FAULT},
            "recovering",
            "Relaunching after: rank 3 on b ended with signal 9.",
        ),
        (
            {"phase": Phase.CHECKING, "fault": FAULT, "launches_in_s": 11.2},
            "recovering",
            "Failed again, launches again in 12 s: rank 3 on b ended with signal 9.",
        ),
        (
            {"phase": Phase.CHECKING, "fault": FAULT},
            "recovering",
            "Stopped and checking nodes: rank 3 on b ended with signal 9.",
        ),
        (
            {"phase": Phase.WAITING, "fault": FAULT, "nodes": (node_snapshot("a"), LOST)},
            "recovering",
            "Waiting for 1 more node(s): rank 3 on b ended with signal 9.",
        ),
        (
            {"phase": Phase.PREEMPTING, "move": MOVE},
            "preempted",
            "Stopping to be pre-empted: noon (ann).",
        ),
        (
            {"phase": Phase.PREEMPTED, "move": MOVE},
            "preempted",
            "Pre-empted after step 9: noon (ann). Resume it with: pulsetrain resume j",
        ),
        (
            {"phase": Phase.PREEMPTED, "move": MOVE, "job": "a b"},
            "preempted",
            "Pre-empted after step 9: noon (ann). Resume it with: pulsetrain resume 'a b'",
        ),
        ({"phase": Phase.FINISHED}, "finished", "Finished after step 5."),
        ({"phase": Phase.FAILED, "failure": "exit code 7"}, "failed", "Failed: exit code 7."),
        ({"phase": Phase.FAILED, "ended_by": "SIGINT"}, "ended", "Ended by SIGINT after step 5."),
        (
            {"phase": Phase.FAILED, "ended_by": "SIGTERM", "nodes": ()},
            "ended",
            "Ended by SIGTERM before the first step.",
        ),
        ({"first_step_done": False}, "starting", "Attempt 0 is starting; no step completed yet."),
        (
            {"first_step_done": False, "fault": FAULT},
            "recovering",
            "Attempt 0 is starting; recovering from: rank 3 on b ended with signal 9.",
        ),
        (
            {"nodes": (node_snapshot("a", status(0), heartbeat_age_s=6.0),)},
            "no_data",
            "No report from any rank for 6 s.",
        ),
    ],
)  # fmt: skip
def test_each_phase_has_its_sentence(changes, state, sentence):
    summary = summarize(job_snapshot(**changes), [])
    assert (summary["state"], summary["sentence"], summary["since_ns"]) == (state, sentence, 900 * S)


ONLY_OBSERVED = "This hub only observes: it restarts nothing."


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_a_failure_that_is_only_observed_is_never_healthy_and_the_cause_is_said_once_it_is_named(phase):
    job = job_snapshot(phase=phase, exits=(rank_exit(3, -9),), left_alone=FAULT)
    told = summarize(job, [])
    assert told["state"] == "warning"
    assert told["sentence"] == f"rank 3 on b ended with signal 9. {ONLY_OBSERVED}"
    named = summarize(job, [finding("crash", summary="Rank 2 was killed.")])
    assert named["sentence"] == f"Rank 2 was killed. {ONLY_OBSERVED}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"exits": (rank_exit(0, 0), rank_exit(3, -9))},
            "A rank has failed: rank 3 on b ended with signal 9.",
        ),
        ({"nodes": (node_snapshot("a", status(0)), LOST)}, "Lost node(s): b."),
    ],
)
def test_a_job_that_runs_without_some_of_its_ranks_is_not_healthy(changes, sentence):
    told = summarize(job_snapshot(**changes), [])
    assert (told["state"], told["sentence"]) == ("warning", sentence)


def test_a_job_whose_agents_report_rarely_has_data_in_between():
    seldom = hello("a", heartbeat_ns=6 * S)
    nodes = [node_snapshot("a", status(0), hello=seldom, heartbeat_age_s=age_s) for age_s in (14.0, 16.0)]
    states = [summarize(job_snapshot(nodes=(node,)), [])["state"] for node in nodes]
    assert states == ["healthy", "no_data"]


def test_a_job_of_which_not_all_is_seen_is_healthy_as_far_as_is_seen():
    told = summarize(job_snapshot(), [], unseen="mfu failed (no answer)")
    seen = "Healthy as far as is seen: step 5, 4 ranks, no fault seen."
    assert told["sentence"] == f"{seen} Not seen: mfu failed (no answer)."
    assert summarize(job_snapshot(), [finding()], unseen="mfu failed")["state"] == "hung"


@pytest.mark.parametrize(
    ("kind", "state"), [("hang", "hung"), ("straggler", "slow"), ("gpu_fault", "warning")]
)
def test_the_worst_open_finding_is_the_sentence_since_it_began(kind, state):
    summary = summarize(job_snapshot(), [finding(kind), finding("mfu_decay")], 950 * S)
    assert summary == {"state": state, "sentence": f"{kind} at rank 3", "since_ns": 950 * S}


def test_findings_do_not_hide_that_the_job_is_over():
    assert summarize(job_snapshot(phase=Phase.FINISHED), [finding()])["since_ns"] == 900 * S


@pytest.mark.parametrize(
    ("act_at_ns", "sentence"),
    [
        (None, "hang at rank 3. It may only pause."),
        (1030 * S, "hang at rank 3. It may only pause. That is in 30 s."),
        (3417 * S, "hang at rank 3. It may only pause. That is in 40 min."),
    ],
)
def test_what_follows_from_a_pending_hang_is_a_sentence_of_its_own(act_at_ns, sentence):
    pending = PendingHang(rank=3, since_ns=0, act_at_ns=act_at_ns, why="It may only pause.")
    job = job_snapshot(pending_hang=pending, now_ns=1000 * S)
    assert summarize(job, [finding("hang")])["sentence"] == sentence


ELASTIC = Resizing(sizes=WorldSizes(least=1, most=2), size=2)


def test_a_job_that_may_shrink_says_what_it_waits_for_and_what_that_costs():
    job = job_snapshot(phase=Phase.WAITING, fault=FAULT, nodes=(node_snapshot("a"), LOST), resizing=ELASTIC)
    sentence = summarize(job, ()).get("sentence")
    assert sentence.startswith("Waiting for 1 more node(s): rank 3 on b")
    assert "It goes on with 1 of 2 nodes soon: waiting has cost" in sentence


def test_a_job_that_cannot_shrink_says_why():
    refused = replace(ELASTIC, why_not="it saves parts")
    job = job_snapshot(phase=Phase.WAITING, fault=FAULT, nodes=(node_snapshot("a"), LOST), resizing=refused)
    assert summarize(job, ())["sentence"].endswith("It cannot go on with fewer: it saves parts.")


def test_a_job_below_its_minimum_says_how_many_nodes_it_needs():
    least_two = Resizing(sizes=WorldSizes(least=2, most=3), size=3)
    job = job_snapshot(phase=Phase.WAITING, fault=FAULT, nodes=(node_snapshot("a"), LOST), resizing=least_two)
    assert summarize(job, ())["sentence"] == "Waiting for 1 more node(s): rank 3 on b ended with signal 9."


def test_a_shrunk_job_says_so():
    few = replace(ELASTIC, size=1)
    nodes = (node_snapshot("a", status(0), status(1)),)
    job = job_snapshot(world=world("a"), nodes=nodes, resizing=few)
    assert summarize(job, ())["sentence"] == "Healthy: step 5, 2 ranks on 1 of 2 nodes, no fault seen."
