import copy

from pulsetrain.hub.kubernetes.job_spec import job_spec
from pulsetrain.hub.kubernetes.objects import JOB_LABEL
from pulsetrain.hub.kubernetes.pods import agent_container, is_replacement, pod_of, serves, service_of
from tests.hub.kubernetes.jobs import pulsetrain_job
from tests.hub.kubernetes.models import check

SPEC = job_spec(pulsetrain_job() | {"metadata": {"name": "gpt", "uid": "u1"}})
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def test_a_pod_runs_one_agent_with_the_flags_of_the_job():
    pod = pod_of(SPEC, "gpt-0")
    check("pods", pod)
    assert pod["spec"]["containers"][0]["args"] == [
        "agent", "--hub=http://hub:8780", "--job=gpt", "--nnodes=2", "--nproc-per-node=auto",
        "--node=$(PULSETRAIN_NODE)", "--address=$(PULSETRAIN_ADDRESS)", "train.py", "--steps", "9",
    ]  # fmt: skip
    names = [e["name"] for e in pod["spec"]["containers"][0]["env"]]
    assert names == ["PULSETRAIN_NODE", "PULSETRAIN_ADDRESS", "PULSETRAIN_TOKEN"]
    assert {"team": "a", JOB_LABEL: "gpt"}.items() <= pod["metadata"]["labels"].items()
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("gpt-0", "gpt")
    assert not is_replacement(pod)


def test_the_job_owns_its_pods_and_its_service():
    service = service_of(SPEC)
    check("services", service)
    assert service["spec"]["clusterIP"] == "None"
    for item in (pod_of(SPEC, "gpt-0"), service):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("PulsetrainJob", "u1", True)


def test_two_pods_of_a_job_are_never_on_one_node():
    (term,) = pod_of(SPEC, "gpt-0")["spec"]["affinity"]["podAntiAffinity"][TERMS]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {JOB_LABEL: "gpt"}


def test_a_replacement_stands_by_and_is_on_none_of_the_evicted_nodes():
    item = pulsetrain_job()
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, {"matchExpressions": []}]
    item["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {TERMS: {"nodeSelectorTerms": terms}}}
    before = copy.deepcopy(item)
    pod = pod_of(job_spec(item), "gpt-r1", standby=True, replacement=True, exclude=("n1", "n2"))
    check("pods", pod)
    assert item == before
    assert "--standby" in pod["spec"]["containers"][0]["args"]
    assert is_replacement(pod)
    for term in pod["spec"]["affinity"]["nodeAffinity"][TERMS]["nodeSelectorTerms"]:
        assert [f["values"] for f in term["matchFields"]] == [["n1"], ["n2"]]


def test_a_machine_that_was_uncordoned_takes_pods_although_an_older_hub_has_tainted_it():
    spec = job_spec(pulsetrain_job())
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    spec.template["spec"]["tolerations"] = [gpu]
    evicted = {"key": "pulsetrain.io/evicted", "operator": "Exists", "effect": "NoSchedule"}
    assert pod_of(spec, "gpt-0")["spec"]["tolerations"] == [gpu, evicted]
    spec.template["spec"]["tolerations"] = None
    assert pod_of(spec, "gpt-0")["spec"]["tolerations"] == [evicted]


def test_the_agent_is_the_container_of_that_name_or_the_first():
    first, second = {"name": "a"}, {"name": "agent"}
    assert agent_container({"containers": [first, second]}) is second
    assert agent_container({"containers": [first]}) is first


def test_a_pod_serves_until_it_ends():
    assert serves({"metadata": {}, "status": {"phase": "Pending"}})
    assert serves({"metadata": {}, "status": {"phase": "Running"}})
    assert not serves({"metadata": {}, "status": {"phase": "Failed"}})
    assert not serves({"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Running"}})
