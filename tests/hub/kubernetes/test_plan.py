from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.hub.kubernetes.job_spec import job_spec
from pulsetrain.hub.kubernetes.plan import KEPT, HubView, plan
from pulsetrain.hub.kubernetes.pods import pod_of
from tests.hub.kubernetes.jobs import pulsetrain_job

SPEC = job_spec(pulsetrain_job())  # two nodes and a standby
NOW_S = 1_800_000_000.0


def stamp(age_s):
    return datetime.fromtimestamp(NOW_S - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(name, phase="Running", node="", *, age_s=3600.0, bound_age_s=None, ending=False, **made):
    item = pod_of(SPEC, name, **made)
    created = stamp(age_s)
    item["metadata"]["creationTimestamp"] = created
    if ending:
        item["metadata"]["deletionTimestamp"] = created
    if node:
        item["spec"]["nodeName"] = node
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(bound_age_s or age_s)}
    return item | {"status": {"phase": phase, "conditions": [bound] if node else []}}


FULL = [pod("gpt-0", node="n0"), pod("gpt-1", node="n1"), pod("gpt-2", node="n2", standby=True)]


def planned(pods, hub=None, spec=SPEC, known_phase="", now_s=NOW_S):
    return plan(spec, pods, hub, known_phase=known_phase, now_s=now_s)


def made(todo):
    return [(p["metadata"]["name"], "--standby" in p["spec"]["containers"][0]["args"]) for p in todo.create]


def test_a_new_job_gets_its_pods_and_its_standby():
    todo = planned([])
    assert made(todo) == [("gpt-0", False), ("gpt-1", False), ("gpt-2", True)]
    assert todo.status["phase"] == "Pending"


def test_a_job_that_has_its_pods_is_left_alone():
    todo = planned(FULL, HubView(step=7, attempt=1, sentence="Healthy.", standbys={"n2"}))
    assert (made(todo), todo.delete) == ([], [])
    assert todo.status == {
        "phase": "Running", "message": "Healthy.", "step": 7, "attempt": 1,
        "pods": {"running": 3, "pending": 0, "ended": 0, "outdated": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    "gone", [pod("gpt-1", "Failed", "n1"), pod("gpt-1", node="n1", ending=True), pod("gpt-1", node="lost")]
)
def test_a_pod_that_has_ended_or_is_lost_is_followed_by_one_that_does_not_stand_by(gone):
    hub = HubView(step=7, gone={"lost": NOW_S})
    assert made(planned([FULL[0], gone, FULL[2]], hub)) == [("gpt-3", False)]


def test_a_replacement_of_the_hub_counts():
    replacement = pod("gpt-r1", "Pending", standby=True, replacement=True)
    pods = [FULL[0], pod("gpt-1", node="lost"), FULL[2], replacement]
    todo = planned(pods, HubView(step=7, gone={"lost": NOW_S}))
    assert (made(todo), todo.delete) == ([], ["gpt-1"])


def test_a_pod_that_is_lost_is_deleted_only_once_there_are_enough_others():
    pods = [FULL[0], pod("gpt-1", node="lost"), FULL[2]]
    assert planned(pods, HubView(step=7, gone={"lost": NOW_S})).delete == []
    assert planned([*pods, pod("gpt-3", "Pending")], HubView(step=7, gone={"lost": NOW_S})).delete == [
        "gpt-1"
    ]


@pytest.mark.parametrize("newer", [{"age_s": 50}, {"age_s": 500, "bound_age_s": 50}])
def test_a_newer_pod_on_a_machine_that_was_lost_or_evicted_is_left_alone(newer):
    """The hub goes on saying what it said of the node until the new agent joins."""
    hub = HubView(step=7, gone={"n1": NOW_S - 100})
    pods = [FULL[0], pod("gpt-1", "Failed", "n1"), FULL[2], pod("gpt-3", node="n1", **newer)]
    todo = planned(pods, hub)
    assert (made(todo), todo.delete) == ([], [])
    older = planned([*pods[:3], pod("gpt-3", node="n1", age_s=101.5)], hub)
    assert made(older) == [("gpt-4", False)]


def test_what_is_no_longer_needed_is_given_back_and_nobody_who_trains():
    replacements = [
        pod("gpt-r1", node="n3", standby=True, replacement=True),
        pod("gpt-r2", "Pending", standby=True, replacement=True),
    ]
    hub = HubView(step=7, standbys={"n2", "n3"})
    assert planned([*FULL, replacements[1]], hub).delete == ["gpt-r2"]
    assert planned([*FULL, *replacements], hub).delete == ["gpt-r2", "gpt-r1"]
    assert planned([*FULL, replacements[0]], HubView(step=7)).delete == []
    assert planned([*FULL, replacements[0]], None).delete == []


def test_a_job_that_has_finished_or_failed_makes_no_pod_and_stays_so():
    assert planned([], HubView(ended="failed")).status["phase"] == "Failed"
    done = [pod("gpt-0", "Succeeded", "n0"), pod("gpt-1", node="n1"), pod("gpt-2", "Pending")]
    todo = planned(done, HubView(ended="finished"))
    assert (todo.status["phase"], made(todo), todo.delete) == ("Finished", [], ["gpt-2"])
    for phase in ("Finished", "Failed"):
        todo = planned([], HubView(step=3), known_phase=phase)
        assert (todo.status["phase"], made(todo)) == (phase, [])


def test_one_pod_that_succeeded_is_not_a_job_that_has_finished():
    pods = [pod("gpt-0", "Succeeded", "n0"), *FULL[1:]]
    todo = planned(pods, HubView(step=7, standbys={"n2"}))
    assert (todo.status["phase"], made(todo)) == ("Running", [("gpt-3", False)])
    assert made(planned(pods)) == []  # where the hub does not say, the others may be about to end


def test_without_a_hub_a_job_has_finished_once_as_many_pods_as_it_needs_succeeded_and_none_runs():
    pods = [pod("gpt-0", "Succeeded", "n0"), pod("gpt-1", "Failed", "n1"), pod("gpt-2", "Pending")]
    assert planned(pods).status["phase"] == "Pending"
    pods[1] = pod("gpt-1", "Succeeded", "n1")
    todo = planned(pods)
    assert (todo.status["phase"], made(todo), todo.delete) == ("Finished", [], ["gpt-2"])
    assert planned([*pods, pod("gpt-3", node="n3")]).status["phase"] == "Pending"


def test_a_job_of_that_name_that_others_train_gets_no_pods_of_this_one():
    todo = planned([], HubView(step=7, is_served=True))
    assert (made(todo), todo.status["phase"]) == ([], "Pending")
    assert "has a job 'gpt' already" in todo.status["message"]
    assert len(made(planned(FULL[:1], HubView(step=7, is_served=True)))) == 2
    assert len(made(planned([], HubView(step=7)))) == 3


def test_a_suspended_job_has_no_pods_and_goes_on_later():
    stopped = job_spec(pulsetrain_job(suspend=True))
    todo = planned(FULL, spec=stopped)
    assert (todo.status["phase"], todo.delete) == ("Suspended", ["gpt-0", "gpt-1", "gpt-2"])
    assert len(planned(FULL, HubView(step=7, gone={"n1": NOW_S}), spec=stopped).delete) == 3
    assert len(planned([], known_phase="Suspended").create) == 3


def test_a_job_whose_pods_end_at_once_waits_longer_each_time():
    failed = [pod(f"gpt-{number}", "Failed", "n0", age_s=5) for number in range(3)]
    todo = planned(failed)
    assert (made(todo), todo.wait_s) == ([], 15.0)
    assert len(planned(failed, now_s=NOW_S + 15).create) == 3
    again = [*failed, *(pod(f"gpt-{number}", "Failed", "n0", age_s=5) for number in range(3, 6))]
    assert planned(again).wait_s == 35.0
    assert planned(failed[:2]).wait_s == 0.0


def test_old_ended_pods_are_deleted_the_oldest_first():
    ended = [pod(f"gpt-{n}", "Failed", "n0", age_s=10_000 - n) for n in range(KEPT + 5)]
    todo = planned([*ended, *(pod(f"gpt-{n}", node=f"m{n}") for n in (90, 91, 92))])
    assert todo.delete == ["gpt-0", "gpt-1"]


def test_pods_of_an_older_template_are_counted_and_left():
    newer = job_spec(pulsetrain_job(script=["train.py", "--steps", "10"]))
    todo = planned(FULL, spec=newer)
    assert (todo.status["pods"]["outdated"], made(todo), todo.delete) == (3, [], [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Pending", "Running", "Failed"]),
            st.sampled_from(["", "n0", "n1"]),
            st.booleans(),
        ),
        max_size=7,
    ),
    st.sets(st.sampled_from(["n0", "n1"])),
)
def test_what_was_planned_leaves_nothing_to_plan(shapes, standbys):
    """And no plan makes and deletes pods at the same time, or makes a name twice."""
    pods = [pod(f"gpt-{i}", phase, node, ending=ends) for i, (phase, node, ends) in enumerate(shapes)]
    hub = HubView(step=1, standbys=standbys)
    todo = planned(pods, hub)
    assert not (todo.create and todo.delete)
    made_pods = [p | {"status": {"phase": "Pending"}} for p in todo.create]
    after = [p for p in pods if p["metadata"]["name"] not in todo.delete] + made_pods
    assert len({p["metadata"]["name"] for p in after}) == len(after)
    again = planned(after, hub)
    assert (list(again.create), list(again.delete)) == ([], [])
