"""The operator over the emulator, with pods that nothing runs."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.kubernetes.objects import JOBS, PODS, SERVICES, labels_of
from pulsetrain.hub.kubernetes.operator import Operator, run_operator
from pulsetrain.hub.kubernetes.plan import HubView
from tests.agent.real_processes import until
from tests.hub.kubernetes.emulator import Refused
from tests.hub.kubernetes.jobs import pulsetrain_job
from tests.kv.test_election import FakeClock


class Views:
    """What the hub says."""

    def __init__(self):
        self.answer = None

    def forget(self):
        pass

    def view(self, hub, job, since_s):
        return self.answer


@pytest.fixture
def views():
    return Views()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def look(api, views, clock):
    """Reads everything anew and looks once."""
    operator = Operator(api, views, clock)

    def look():
        operator.jobs._list()
        operator.pods._list()
        operator.turn()

    return look


def names(cluster):
    return [p["metadata"]["name"] for p in cluster.all("pods")]


def test_a_job_gets_its_pods_its_service_and_a_status(api, cluster, look):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    look()
    assert names(cluster) == ["gpt-0", "gpt-1", "gpt-2"]
    assert api.get(SERVICES, "gpt")["spec"]["clusterIP"] == "None"
    look()
    assert names(cluster) == ["gpt-0", "gpt-1", "gpt-2"]
    status = api.get(JOBS, "gpt")["status"]
    assert (status["phase"], status["pods"]["pending"], status["observedGeneration"]) == ("Pending", 3, 1)


def test_a_second_operator_that_reads_an_old_list_makes_no_pod_twice(api, cluster, views, clock):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    operators = [Operator(api, views, clock) for _ in "ab"]
    for operator in operators:
        operator.jobs._list()
        operator.pods._list()
    for operator in operators:
        operator.turn()
    assert names(cluster) == ["gpt-0", "gpt-1", "gpt-2"]


def test_a_job_that_is_deleted_takes_all_with_it(api, cluster, look):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    look()
    api.delete(JOBS, "gpt")
    look()
    assert names(cluster) == []
    assert api.get(SERVICES, "gpt") is None


def test_pods_of_an_earlier_job_of_that_name_are_not_its_own(api, cluster, look):
    stale = {"name": "agent", "image": "i"}
    metadata = {"name": "gpt-0", "labels": {"pulsetrain.io/job": "gpt"}}
    cluster.create("pods", "train", {"metadata": metadata, "spec": {"containers": [stale]}})
    cluster.create("pulsetrainjobs", "train", pulsetrain_job(standbys=0))
    look()
    assert names(cluster) == ["gpt-0", "gpt-1"]
    api.delete(PODS, "gpt-0")
    look()
    assert [bool(p["metadata"].get("ownerReferences")) for p in cluster.all("pods")] == [True, True]


def test_a_step_is_told_seldom_and_an_attempt_at_once(api, cluster, look, views, clock):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    clock.now_s = 1000.0

    def told(**view):
        views.answer = HubView(**view)
        look()
        return api.get(JOBS, "gpt")["status"].get("step")

    look()
    assert told(step=1) == 1
    clock.now_s += 2
    assert told(step=2) == 1
    assert told(step=3, attempt=1) == 3
    clock.now_s += 16
    assert told(step=4, attempt=1) == 4


def test_a_standby_that_its_job_needs_after_all_is_not_deleted(api, cluster, look, views):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    look()
    for number, name in enumerate(names(cluster)):
        cluster.patch("pods", "train", name, {"spec": {"nodeName": f"n{number}"}})
    api.patch(JOBS, "gpt", {"spec": {"standbys": 0}})
    trains = HubView(step=7, standbys={"n2"})
    answers = iter([trains, HubView(step=7)])
    views.view = lambda hub, job, since_s: next(answers)
    look()
    assert names(cluster) == ["gpt-0", "gpt-1", "gpt-2"]
    views.view = lambda hub, job, since_s: trains
    look()
    assert names(cluster) == ["gpt-0", "gpt-1"]


def test_a_job_that_ended_while_the_operator_looked_at_others_gets_no_new_pods(
    api, cluster, look, views, clock
):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    look()
    for name in names(cluster):
        cluster.patch("pods", "train", name, {"status": {"phase": "Succeeded"}}, status=True)
    clock.now_s += 3600
    answers = iter([HubView(step=7), HubView(step=9, ended="finished")])
    views.view = lambda hub, job, since_s: next(answers)
    look()
    assert names(cluster) == ["gpt-0", "gpt-1", "gpt-2"]
    assert api.get(JOBS, "gpt")["status"]["phase"] == "Finished"


def test_what_cannot_be_read_is_told_in_the_status_and_others_go_on(api, cluster, look):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job("bad", template={"spec": {"containers": []}}))
    cluster.create("pulsetrainjobs", "train", pulsetrain_job("good"))
    look()
    assert "spec.template.spec.containers" in api.get(JOBS, "bad")["status"]["message"]
    assert {labels_of(p)["pulsetrain.io/job"] for p in cluster.all("pods")} == {"good"}


def test_a_pod_that_the_api_refuses_is_tried_again(server, cluster, look):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    quota = Refused(403, "Forbidden", "exceeded quota")
    server.fails = lambda method, path: quota if method == "POST" and path.endswith("/pods") else None
    look()
    assert names(cluster) == []
    server.fails = lambda method, path: None
    look()
    assert len(names(cluster)) == 3


def test_it_follows_what_happens_by_itself(api, cluster, views):
    operator = Operator(api, views)
    operator.start()
    try:
        cluster.create("pulsetrainjobs", "train", pulsetrain_job())
        assert until(lambda: len(names(cluster)) == 3)
        api.delete(PODS, "gpt-1")
        assert until(lambda: len(names(cluster)) == 3)
        api.delete(JOBS, "gpt")
        assert until(lambda: not names(cluster))
    finally:
        operator.stop()


def test_without_the_crd_it_ends_with_one_line(server):
    server.fails = lambda method, path: Refused(404, "NotFound", "the server could not find the resource")
    with pytest.raises(UsageError, match="could not find the resource"):
        run_operator({"PULSETRAIN_KUBERNETES_API": server.url}, print)


def test_a_hub_with_an_odd_answer_holds_up_its_own_job_alone(api, cluster, look, views):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job("a"))
    cluster.create("pulsetrainjobs", "train", pulsetrain_job("b"))

    def view(hub, job, since_s):
        if job == "a":
            raise KeyError("jobs")
        return None

    views.view = view
    look()
    assert names(cluster) == ["b-0", "b-1", "b-2"]
