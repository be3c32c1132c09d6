"""Who is at fault: the mark of a node."""

import json

import pytest

from pulsetrain.dashboard.models.attribution import attribute, node_state


def finding(subject_type, subject, severity="critical", kind="hang"):
    return {
        "kind": kind, "subject_type": subject_type, "subject": subject, "severity": severity, "summary": "s",
        "evidence": json.dumps({}),
    }  # fmt: skip


NODE = {"node": "n1", "state": "active", "ranks": [2, 3]}


@pytest.mark.parametrize(
    ("found", "node", "state"),
    [
        ([finding("rank", "3")], {}, "culprit"),
        ([finding("node", "n1")], {}, "culprit"),
        ([finding("rank", "2", kind="straggler")], {}, "slow"),
        ([finding("rank", "5")], {}, "active"),
        ([finding("rank", "3")], {"state": "evicted"}, "evicted"),
        ([], {}, "active"),
    ],
)
def test_the_node_of_a_culprit_is_not_green(found, node, state):
    assert node_state(NODE | node, attribute(found)) == state


def test_culprits_are_those_of_critical_findings():
    assert attribute([finding("rank", "3"), finding("rank", "2", kind="straggler")]).culprits == {3}
