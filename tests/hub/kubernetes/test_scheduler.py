"""What is asked of Kubernetes when a node is evicted, is good again, or is missing."""

from dataclasses import replace

import pytest

from pulsetrain.core.errors import AuthError, Unavailable, UsageError
from pulsetrain.hub.kubernetes.errors import NotFound
from pulsetrain.hub.kubernetes.objects import JOB_LABEL, NODES, PODS
from pulsetrain.hub.kubernetes.scheduler import KubernetesScheduler
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig, Unanswered
from tests.hub.kubernetes.emulator import Refused
from tests.hub.kubernetes.jobs import node, pulsetrain_job

CORDONED = "2027-01-15T08:00:00Z"
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


class Time:
    """A clock that goes on while somebody sleeps."""

    def __init__(self):
        self.now_s, self.slept, self.meanwhile = 0.0, [], lambda: None

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return 1_800_000_000 * 10**9

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds
        self.meanwhile()


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def scheduler(api, time):
    config = SchedulerConfig(kind="kubernetes", timeout_s=20)
    return KubernetesScheduler(config, api, clock=time, sleep=time.sleep)


@pytest.fixture
def n1(cluster):
    cluster.create("nodes", "", node("n1", taints=[OTHER]))


def start(cluster, name, at="n1", labels=None, job="gpt"):
    spec = {"containers": [{"name": "agent", "image": "i"}], "nodeName": at}
    item = {
        "metadata": {"name": name, "labels": {JOB_LABEL: job} if labels is None else labels},
        "spec": spec,
    }
    cluster.create("pods", "train", item)
    cluster.patch("pods", "train", name, {"status": {"phase": "Running"}}, status=True)


def protect(cluster, least):
    budget = {"minAvailable": least, "selector": {"matchLabels": {JOB_LABEL: "gpt"}}}
    cluster.create("poddisruptionbudgets", "train", {"metadata": {"name": "gpt"}, "spec": budget})


def uncordon(cluster):
    cluster.patch("nodes", "", "n1", {"spec": {"unschedulable": None}})


def names(cluster):
    return [pod["metadata"]["name"] for pod in cluster.all("pods")]


@pytest.mark.usefixtures("n1")
def test_a_node_is_cordoned_with_the_reason_and_its_pods_of_jobs_are_evicted(api, cluster, scheduler):
    start(cluster, "gpt-0")
    start(cluster, "gpt-1", at="n2")
    start(cluster, "dns", labels={})
    said = scheduler.drain("n1", "Xid 79:\n fallen off the bus", job="gpt")
    assert said == "n1 is cordoned: Xid 79: fallen off the bus, evicted: gpt-0"
    now = api.get(NODES, "n1")
    assert now["spec"]["unschedulable"] is True
    assert now["metadata"]["annotations"] == {
        "pulsetrain.io/reason": "Xid 79: fallen off the bus", "pulsetrain.io/cordoned-at": CORDONED,
    }  # fmt: skip
    assert now["spec"]["taints"] == [OTHER]
    assert names(cluster) == ["dns", "gpt-1"]


@pytest.mark.usefixtures("n1")
def test_pods_of_other_jobs_on_the_node_train_on(api, cluster, scheduler):
    start(cluster, "a-0", job="a")
    start(cluster, "b-0", job="b")
    assert scheduler.drain("n1", "gpu", job="a") == "n1 is cordoned: gpu, evicted: a-0"
    assert names(cluster) == ["b-0"]
    assert api.get(NODES, "n1")["spec"]["unschedulable"] is True


@pytest.mark.usefixtures("n1")
def test_a_node_without_a_pod_of_the_job_is_not_taken_from_others(api, cluster, scheduler):
    """An agent with the token of a job may have said any name."""
    start(cluster, "a-0", at="n2", job="a")
    start(cluster, "b-0", job="b")
    start(cluster, "dns", labels={})
    with pytest.raises(UsageError, match="job 'a' has no pod on node 'n1' in namespace train"):
        scheduler.drain("n1", "gpu", job="a")
    assert not api.get(NODES, "n1")["spec"].get("unschedulable")
    assert names(cluster) == ["a-0", "b-0", "dns"]


@pytest.mark.usefixtures("n1")
def test_a_job_whose_pods_have_no_label_needs_one_on_the_node(api, cluster, scheduler):
    start(cluster, "b-0", job="b")
    with pytest.raises(UsageError, match="has no pod on node 'n1'"):
        scheduler.drain("n1", "gpu", job="team/c")  # no label's value
    start(cluster, "agent-x7", labels={})
    assert scheduler.drain("n1", "gpu", job="team/c") == "n1 is cordoned: gpu"
    assert names(cluster) == ["agent-x7", "b-0"]
    assert api.get(NODES, "n1")["spec"]["unschedulable"] is True


@pytest.mark.usefixtures("n1")
def test_a_machine_that_is_good_again_is_uncordoned(api, cluster, scheduler):
    start(cluster, "gpt-0")
    before = api.get(NODES, "n1")["spec"]
    scheduler.drain("n1", "gpu", job="gpt")
    assert scheduler.give_back("n1") == "n1 is not cordoned any more"
    now = api.get(NODES, "n1")
    assert now["spec"] == before
    assert not now["metadata"]["annotations"]
    assert scheduler.give_back("n1") == "n1 was not cordoned by Pulsetrain"


def test_what_somebody_else_has_cordoned_stays_as_it_is(api, cluster, scheduler):
    before = cluster.create("nodes", "", node("n1", unschedulable=True))
    start(cluster, "agent-x7", labels={})
    assert scheduler.drain("n1", "gpu", job="gpt") == "n1 was cordoned already: somebody else did"
    assert scheduler.give_back("n1") == "n1 was not cordoned by Pulsetrain"
    assert api.get(NODES, "n1") == before


@pytest.mark.usefixtures("n1")
def test_a_machine_that_somebody_uncordons_takes_pods_again(api, cluster, scheduler):
    start(cluster, "gpt-0")
    before = api.get(NODES, "n1")["spec"]
    scheduler.drain("n1", "gpu", job="gpt")
    uncordon(cluster)
    assert api.get(NODES, "n1")["spec"] == before
    assert scheduler.give_back("n1") == "n1 was not cordoned any more"
    assert not api.get(NODES, "n1")["metadata"]["annotations"]


@pytest.mark.parametrize(("added", "stays"), [("08:00:01", False), ("20:30:00", True)])
@pytest.mark.usefixtures("n1")
def test_a_cordon_that_a_person_has_put_there_since_then_stays(api, cluster, scheduler, added, stays):
    start(cluster, "gpt-0")
    scheduler.drain("n1", "gpu", job="gpt")
    uncordon(cluster)
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    taints = [OTHER, taint | {"timeAdded": f"2027-01-15T{added}Z"}]
    cluster.patch("nodes", "", "n1", {"spec": {"unschedulable": True, "taints": taints}})
    said = "stays cordoned: somebody else did" if stays else "is not cordoned any more"
    assert scheduler.give_back("n1") == f"n1 {said}"
    assert api.get(NODES, "n1")["spec"].get("unschedulable", False) is stays
    assert scheduler.give_back("n1") == "n1 was not cordoned by Pulsetrain"


def test_what_an_older_hub_has_cordoned_is_given_back_with_its_taint(api, cluster, scheduler):
    taint = {"key": "pulsetrain.io/evicted", "value": "true", "effect": "NoSchedule"}
    item = node("n1", taints=[OTHER, taint], unschedulable=True)
    item["metadata"]["annotations"] = {"pulsetrain.io/reason": "gpu"}
    cluster.create("nodes", "", item)
    assert scheduler.give_back("n1") == "n1 is not cordoned any more"
    assert api.get(NODES, "n1")["spec"] == {"taints": [OTHER]}


@pytest.mark.usefixtures("n1")
def test_a_taint_that_somebody_else_adds_at_the_same_moment_is_kept(api, server, cluster, scheduler):
    mine = {"key": "maintenance", "effect": "NoSchedule"}
    once = iter([lambda: cluster.patch("nodes", "", "n1", {"spec": {"taints": [OTHER, mine]}})])

    def meanwhile(method, path):
        if method == "PATCH":
            next(once, lambda: None)()

    start(cluster, "gpt-0")
    server.fails = meanwhile
    scheduler.drain("n1", "gpu", job="gpt")
    keys = [t["key"] for t in api.get(NODES, "n1")["spec"]["taints"]]
    assert keys == ["nvidia.com/gpu", "maintenance"]
    assert api.get(NODES, "n1")["spec"]["unschedulable"] is True


@pytest.mark.usefixtures("n1")
def test_an_eviction_that_a_budget_refuses_is_tried_again_until_it_is_allowed(cluster, scheduler, time):
    start(cluster, "gpt-0")
    protect(cluster, least=1)
    time.meanwhile = lambda: len(time.slept) == 3 and start(cluster, "gpt-1", at="n2")
    assert scheduler.drain("n1", "gpu", job="gpt").endswith("evicted: gpt-0")
    assert names(cluster) == ["gpt-1"]
    assert time.slept == [0.25, 0.5, 1.0]


@pytest.mark.usefixtures("n1")
def test_an_eviction_that_is_never_allowed_ends_and_the_node_stays_cordoned(api, cluster, scheduler, time):
    start(cluster, "gpt-0")
    protect(cluster, least=1)
    with pytest.raises(Unavailable, match=r"n1 is cordoned: gpu, but pod gpt-0 is not evicted: .*budget"):
        scheduler.drain("n1", "gpu", job="gpt")
    assert time.now_s <= 20
    assert api.get(NODES, "n1")["spec"]["unschedulable"] is True


@pytest.mark.usefixtures("n1")
def test_a_pod_whose_agent_ends_by_itself_needs_no_eviction(cluster, scheduler, time):
    start(cluster, "gpt-0")
    protect(cluster, least=1)
    time.meanwhile = lambda: cluster.patch(
        "pods", "train", "gpt-0", {"status": {"phase": "Failed"}}, status=True
    )
    scheduler.drain("n1", "gpu", job="gpt")
    assert len(time.slept) == 1


def test_a_replacement_is_made_of_the_jobs_template_and_owned_by_it(api, cluster, scheduler):
    job = cluster.create("pulsetrainjobs", "train", pulsetrain_job(nnodes=4, minNodes=2))
    said = scheduler.replace(NodeRequest(job="gpt", nnodes=4, least=2, exclude=("n1",)))
    (pod,) = api.list(PODS).items
    assert said == f"pod {pod['metadata']['name']}"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert {"--standby", "--nnodes=2:4", "--job=gpt"} < set(pod["spec"]["containers"][0]["args"])


def test_a_replacement_without_an_answer_is_made_once(api, server, cluster, scheduler):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    request = NodeRequest(job="gpt", nnodes=2, least=2, number=1_800_000_000)
    slow = Refused(504, "Timeout", "the server was unable to return a response in time")
    server.fails = lambda method, path: slow if method == "POST" else None
    with pytest.raises(Unanswered, match="in time"):
        scheduler.replace(request)
    server.fails = lambda method, path: None
    assert scheduler.replace(request) == scheduler.replace(replace(request, again=True))
    assert len(api.list(PODS).items) == 1
    assert scheduler.replace(replace(request, number=1_800_000_001)) == "pod gpt-r49d201"


def test_a_conflict_over_something_else_is_no_pod(server, cluster, scheduler):
    cluster.create("pulsetrainjobs", "train", pulsetrain_job())
    quota = Refused(409, "Conflict", "the quota has been modified")
    server.fails = lambda method, path: quota if method == "POST" else None
    with pytest.raises(Unanswered, match="quota"):
        scheduler.replace(NodeRequest(job="gpt", nnodes=2, least=2, number=1))


def test_a_job_without_a_template_gets_no_pod(api, cluster, scheduler):
    with pytest.raises(UsageError, match="job 'gpt' has no PulsetrainJob in namespace train"):
        scheduler.replace(NodeRequest(job="gpt", nnodes=2, least=2))
    cluster.create("pulsetrainjobs", "train", pulsetrain_job(nnodes=4))
    with pytest.raises(UsageError, match="is of 4 nodes, the job of 2"):
        scheduler.replace(NodeRequest(job="gpt", nnodes=2, least=2))
    with pytest.raises(UsageError, match="no name of a Kubernetes object"):
        scheduler.replace(NodeRequest(job="a/b", nnodes=2, least=2))
    assert not api.list(PODS).items


def test_what_cannot_be_done_is_one_line(server, cluster, scheduler):
    start(cluster, "gpt-9", at="n9")
    with pytest.raises(NotFound, match='"n9" not found'):
        scheduler.drain("n9", "gpu", job="gpt")
    with pytest.raises(UsageError):
        scheduler.drain("n1/../n2", "gpu", job="gpt")
    server.fails = lambda method, path: Refused(403, "Forbidden", 'nodes "n1" is forbidden')
    with pytest.raises(AuthError, match="is forbidden"):
        scheduler.give_back("n1")
