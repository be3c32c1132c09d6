"""Who is at fault: the mark of a node."""

import json

import pytest

from pulsetrain.dashboard.models.attribution import accused, attribute, node_state, with_alerts


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
        ([finding("link", "n1/mlx5_0/1", "warning", "link_flap")], {}, "part"),
        ([finding("link", "n11/mlx5_0/1", "warning", "link_flap")], {}, "active"),
        ([finding("rank", "3")], {"state": "evicted"}, "evicted"),
        ([], {}, "active"),
    ],
)
def test_the_node_of_a_culprit_is_not_green(found, node, state):
    assert node_state(NODE | node, attribute(found)) == state


def test_culprits_are_those_of_critical_findings():
    assert attribute([finding("rank", "3"), finding("rank", "2", kind="straggler")]).culprits == {3}


def test_a_flapping_link_that_only_an_alert_names_is_said_beside_the_findings():
    alerts = [
        {**finding("link", "n4/mlx5_0/1", "warning", "link_flap"), "state": state, "job": job}
        for state, job in (("firing", "j"), ("firing", "other"), ("resolved", "j"))
    ]
    alerts += [{**finding("rank", "9"), "state": "firing", "job": "j"}]
    found = with_alerts([finding("rank", "3"), finding("node", "n2", kind="straggler")], alerts, "j")
    named = [(each.name, each.state, each.node) for each in accused(found)]
    assert named == [("rank 3", "culprit", ""), ("n2", "slow", "n2"), ("link n4/mlx5_0/1", "part", "n4")]
    assert attribute(found).state(32, "n4") == "part"


@pytest.mark.parametrize(
    ("kind", "accuses"), [("node_lost", False), ("straggler", False), ("host_fault", True)]
)
def test_an_alert_outlives_what_the_job_itself_is_judged_for(kind, accuses):
    alert = {**finding("node", "n1", kind=kind), "state": "firing", "job": "j"}
    assert bool(accused(with_alerts([], [alert], "j"))) is accuses


def test_nobody_is_accused_by_information_or_for_a_job():
    assert accused([finding("rank", "3", "info"), finding("job", "j")]) == []
