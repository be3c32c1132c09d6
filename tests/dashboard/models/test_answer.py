"""The answer in five seconds: how sure, what the controller does, what to do, where the evidence is."""

import json

import pytest

from pulsetrain.dashboard.models.answer import answer

S = 10**9
NOW = 10_000 * S
HANG = {
    "kind": "hang", "subject_type": "rank", "subject": "5", "severity": "critical", "confidence": 0.97,
}  # fmt: skip
SLOW = {**HANG, "kind": "straggler", "subject_type": "node", "subject": "n7", "severity": "warning"}


def job(**changes):
    return {"job": "gpt", "state": "running", "findings": [HANG], "pending_hang": None, **changes}


def event(kind, age_s=20, node="", rank=-1, **detail):
    return {"kind": kind, "ts_ns": NOW - age_s * S, "node": node, "rank": rank, "detail": json.dumps(detail)}


def asked(job, events=(), incidents=(), *, observe_only=False):
    return answer(job, incidents, events, observe_only=observe_only, now_ns=NOW)


PENDING = {"rank": 5, "since_ns": NOW - 30 * S, "act_at_ns": NOW + 90 * S, "why": "The job may only pause."}


@pytest.mark.parametrize(
    ("now", "events", "observe_only", "says"),
    [
        (job(pending_hang=PENDING), [], False, "The job may only pause. That is in 90 s, at 02:48:10 UTC."),
        (
            job(pending_hang={**PENDING, "act_at_ns": NOW + 2400 * S}),
            [],
            False,
            "The job may only pause. That is in 40 min, at 03:26:40 UTC.",
        ),
        (job(pending_hang={**PENDING, "act_at_ns": None}), [], False, "The job may only pause."),
        (job(state="checking"), [], False, "It checks every node now."),
        (job(findings=[SLOW]), [], False, "It leaves slow machines to a person."),
        (job(), [], True, "It only observes. It would not have acted so far."),
        (
            job(),
            [event("would", rank=5, reason="the job hangs")],
            True,
            "It only observes. 20 s ago it would have acted on rank 5: the job hangs.",
        ),
        (
            job(findings=[]),
            [event("recovery", cause="node_lost", culprit="n3", total_ns=3_800_000_000, resumed_step=78)],
            False,
            "It recovered the job 20 s ago: node_lost of n3, 3.80 s, from step 78.",
        ),
        (
            job(findings=[]),
            [event("recovery", cause="preemption", total_ns=95_000_000_000, from_step=-1, resumed_step=-1)],
            False,
            "It began the job 20 s ago, which had been held back before its first step for 1 min 35 s.",
        ),
        (job(findings=[]), [event("evict", age_s=7200, node="n3")], False, "Nothing needs to be done."),
        (job(state="past"), [], False, "The job does not run on this hub, so nothing is done."),
    ],
)
def test_what_the_controller_does_waits_for_or_would_do(now, events, observe_only, says):
    assert asked(now, events, observe_only=observe_only).controller == says


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (
            event("cordon", node="n3", reason="Xid 94"),
            "It cordoned n3 20 s ago, so it takes no other node's place: Xid 94.",
        ),
        (event("uncordon", node="n3"), "It ended the cordon of n3 20 s ago."),
        (
            event("link_check", named=[{"kind": "port", "name": "n3/mlx5_0"}]),
            "It measured links 20 s ago: port n3/mlx5_0.",
        ),
        (event("link_check"), "It measured links 20 s ago: nothing is wrong with them."),
        (event("link_check_skipped", reason="2 of 3"), "It could not measure links 20 s ago: 2 of 3."),
        (
            event("arithmetic_check", nodes=["n1", "n2"], wrong={"n2": "3 elements"}),
            "It checked the arithmetic of n1, n2 20 s ago: wrong products on n2.",
        ),
        (
            event("replay", named={"n2": "2 replays failed"}),
            "It replayed training in groups of nodes 20 s ago: it fails with n2.",
        ),
        (
            event("replay", named={}, reason="the fault did not come again"),
            "It replayed training in groups of nodes 20 s ago: the fault did not come again.",
        ),
        (
            event("replay_skipped", reason="for groups there are too few nodes: 1"),
            "It could not replay training 20 s ago: for groups there are too few nodes: 1.",
        ),
        (
            event("arithmetic_check", nodes=["n1"]),
            "It checked the arithmetic of n1 20 s ago: no wrong product.",
        ),
    ],
)
def test_what_the_controller_did_about_machines(event, says):
    assert asked(job(findings=[]), [event]).controller == says


def test_a_job_that_was_stopped_before_its_first_step():
    said = asked(job(findings=[]), [event("preempted", step=-1)]).controller
    assert said == "It stopped the job 20 s ago before its first step, as it was asked to."


def test_an_event_without_a_sentence_does_not_hide_the_one_before():
    events = [event("links_suspected", age_s=1), event("evict", node="n3", reason="lost")]
    events[0]["ts_ns"] = NOW - 3700 * S
    assert asked(job(findings=[]), events).controller == "It evicted n3 20 s ago: lost."


def test_how_sure_and_one_click_to_the_evidence():
    found = asked(job())
    assert found.confidence == 0.97
    assert dict(found.links) == {
        "incident": "incidents?job=gpt",
        "rank 5": "rank?job=gpt&rank=5",
        "its logs": "logs?job=gpt&ranks=5",
        "its timeline": "timeline?job=gpt&ranks=5",
        "stacks": "stacks?job=gpt",
        "topology": "topology?job=gpt",
    }
    assert dict(asked(job(findings=[SLOW])).links)["n7"] == "node?job=gpt&node=n7"
    assert asked(job(findings=[])).confidence is None


def test_what_to_do_is_the_action_of_the_incident_about_the_culprit():
    incidents = [
        {"job": "gpt", "root": "rank 2", "suggested_action": "not this"},
        {"job": "gpt", "root": "rank 5", "suggested_action": "Read its stack."},
        {"job": "bert", "root": "rank 5", "suggested_action": "nor this"},
    ]
    assert asked(job(), incidents=incidents).to_do == "Read its stack."
    assert asked(job(), incidents=[]).to_do == "Look at the evidence."
    other = asked(job(), incidents=incidents[:1]).to_do
    assert other == "not this The incident is put down to rank 2."
    unsure = {**incidents[0], "hypotheses": [{"root": "rank 2", "confidence": 0.6}]}
    assert asked(job(), incidents=[unsure]).to_do.endswith("put down to rank 2, 60% sure.")
    assert asked(job(findings=[]), incidents=incidents).to_do == "Nothing."


def test_an_incident_that_is_over_does_not_hide_the_open_one_that_holds_the_finding():
    def incident(root, action, state, kind, subject):
        row = {"kind": kind, "subject": subject}
        return {"job": "gpt", "root": root, "suggested_action": action, "state": state, "timeline": [row]}

    decay = {**SLOW, "kind": "mfu_decay", "subject_type": "job", "subject": "gpt"}
    incidents = [
        incident("rank 0", "Check n0.", "over", "straggler", "rank 0"),
        incident("node n9", "Check n9.", "open", "link_flap", "node n9"),
        incident("rank 1", "Check n1.", "open", "mfu_decay", "job gpt"),
        incident("job gpt", "Wait.", "over", "mfu_decay", "job gpt"),
    ]
    assert asked(job(findings=[decay]), incidents=incidents).to_do.startswith("Check n1. The incident is put")
    del incidents[2]
    assert asked(job(findings=[decay]), incidents=incidents).to_do == "Wait."
    assert asked(job(findings=[decay]), incidents=incidents[:2]).to_do.startswith("Check n9.")
    assert asked(job(findings=[decay]), incidents=incidents[:1]).to_do.startswith("Check n0.")


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        ("forming", "forming", "nodes that are missing"),
        ("waiting", "recovering", "another node"),
        ("failed", "failed", "last output"),
        ("running", "no_data", "reach the hub"),
        ("past", "no_data", "meant to run"),
        ("running", "healthy", "Nothing."),
    ],
)
def test_without_a_finding_the_state_says_what_to_do(state, verdict, words):
    assert words in asked(job(state=state, findings=[], verdict={"state": verdict})).to_do


def test_nothing_is_to_be_done_about_a_job_that_is_over():
    assert asked(job(state="finished", verdict={"state": "finished"})).to_do == "Nothing."


def test_information_accuses_nobody():
    assert asked(job(findings=[{**HANG, "severity": "info"}])).confidence is None


def test_while_nodes_are_checked_it_says_whether_training_is_replayed():
    checking = {"job": "j", "state": "checking", "findings": [], "since_ns": NOW - 60 * S}
    started = event("replay_started", age_s=9, nodes=["a", "b", "c"])
    replays = "It replays training on 3 nodes to find which of them makes it fail. It began 9 s ago."
    assert asked(checking, [started]).controller == replays
    assert asked(checking, [event("replay", age_s=2, named={}), started]).controller == CHECKS
    earlier = event("replay_started", age_s=90, nodes=["a"])
    assert asked(checking, [earlier]).controller == CHECKS


CHECKS = "It checks every node now."
