import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.kubernetes.objects import JOBS, NODES, PODS, checked_label


def test_where_objects_are():
    assert NODES.path("train", "n1") == "/api/v1/nodes/n1"
    assert PODS.path("train", "p", "eviction") == "/api/v1/namespaces/train/pods/p/eviction"
    assert JOBS.path("train") == "/apis/pulsetrain.io/v1alpha1/namespaces/train/pulsetrainjobs"
    assert JOBS.api_version == "pulsetrain.io/v1alpha1"


@pytest.mark.parametrize("value", ["", "a,b", "a=b", "-a", "a b", "x" * 64, "a\n"])
def test_what_a_selector_would_read_as_more_than_one_value_is_refused(value):
    with pytest.raises(UsageError, match="no value of a Kubernetes label"):
        checked_label(value)
    assert checked_label("GPT-3_b.1") == "GPT-3_b.1"
