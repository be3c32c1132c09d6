import re

import pytest
import yaml

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.kubernetes.job_spec import job_spec
from tests.hub.kubernetes.jobs import pulsetrain_job
from tests.hub.kubernetes.models import CRD, check


def test_what_is_not_said_has_a_default():
    spec = job_spec(pulsetrain_job())
    assert (spec.flag, spec.nproc_per_node, spec.hub, spec.agent_args) == ("2", "auto", "http://hub:8780", ())
    assert job_spec(pulsetrain_job(nnodes=4, minNodes=2)).flag == "2:4"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nnodes": 0}, "spec.nnodes = 0"),
        ({"nnodes": "2"}, "spec.nnodes = '2'"),
        ({"minNodes": 0}, "spec.minNodes"),
        ({"standbys": -1}, "spec.standbys"),
        ({"script": []}, "spec.script"),
        ({"script": "train.py"}, "spec.script"),
        ({"agentArgs": [1]}, "spec.agentArgs"),
        ({"template": {}}, "spec.template.spec.containers"),
        ({"template": {"spec": {"containers": ["agent"]}}}, "spec.template.spec.containers"),
    ],
)
def test_what_cannot_be_used_is_named(change, field):
    with pytest.raises(UsageError, match=re.escape(f"PulsetrainJob gpt: {field}")):
        job_spec(pulsetrain_job(**change))


def test_the_revision_changes_with_what_pods_are_told_and_not_with_how_many_there_are():
    first = job_spec(pulsetrain_job()).revision
    assert job_spec(pulsetrain_job(standbys=3, suspend=True)).revision == first
    assert job_spec(pulsetrain_job(script=["train.py", "--steps", "10"])).revision != first
    assert job_spec(pulsetrain_job(agentArgs=["--quiet"])).revision != first


def test_the_crd_takes_what_is_read_here_and_nothing_else():
    check("pulsetrainjobs", pulsetrain_job(minNodes=1, hub="http://h", agentArgs=["-m"], suspend=False))
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for bad in ({"nnodes": 0}, {"script": []}, {"nprocPerNode": "many"}, {"typo": 1}):
        with pytest.raises(Exception, match=next(iter(bad))):
            check("pulsetrainjobs", pulsetrain_job(**bad))
    assert set(schema["properties"]["spec"]["properties"]) == {
        "nnodes", "minNodes", "standbys", "nprocPerNode", "hub", "agentArgs", "script", "suspend", "template",
    }  # fmt: skip
