"""Which findings suspect links, when, and of which nodes."""

import pytest

from pulsetrain.recovery.link_suspicion import KEPT_S, SECOND_WITHIN_S, LinkSuspicions, concerned
from tests.recovery.builders import world
from tests.recovery.fakes import Observed

WORLD = world("a", "b", "c")


def alert(kind="link_flap", node="a", port="mlx5_0"):
    return Observed(kind=kind, subject_type="link", subject=f"{node}/{port}", details={"node": node})


def slow_link(*nodes):
    return Observed(kind="slow_link", subject_type="group", subject="dp:1", details={"nodes": list(nodes)})


def hang(subject_type="group", **details):
    return Observed(kind="hang", subject_type=subject_type, subject="dp", details=details)


def nodes(suspicions):
    return [s.nodes for s in suspicions]


def test_a_slow_group_suspects_the_links_of_its_nodes_at_once_and_once():
    links = LinkSuspicions()
    assert nodes(links.take([slow_link("a", "b")], WORLD, 0.0)) == [("a", "b")]
    assert links.take([slow_link("a", "b")], WORLD, 1.0) == []
    assert len(links.open()) == 1


def test_rounds_that_tell_nothing_leave_the_suspicion_for_one_more_stop():
    links = LinkSuspicions()
    links.take([slow_link("a", "b")], WORLD, 0.0)
    links.undecided()
    assert nodes(links.open()) == [("a", "b")]
    links.undecided()
    assert links.open() == []
    assert links.take([slow_link("a", "b")], WORLD, 1.0) == []


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (hang(culprits=[], nodes=[]), [()]),
        (hang(culprits=[3], nodes=["b"]), []),
        (hang("rank", culprits=[]), []),
        (Observed(kind="crash", subject="1"), []),
        (Observed(kind="nan", subject="1"), []),
        (
            Observed(kind="slow_link", subject="g", subject_type="group", details={"ranks": [0, 2, 3]}),
            [("a", "b")],
        ),
        (Observed(kind="slow_link", subject="3"), [("b",)]),
        (Observed(kind="slow_link", subject="c", subject_type="node"), [("c",)]),
    ],
)
def test_a_hang_without_a_culprit_suspects_all_links_and_what_is_no_link_suspects_none(finding, expected):
    assert nodes(LinkSuspicions().take([finding], WORLD, 0.0)) == expected


@pytest.mark.parametrize(
    ("after_s", "suspected"), [(SECOND_WITHIN_S - 1, True), (SECOND_WITHIN_S + 1, False)]
)
def test_an_alert_of_a_port_waits_for_a_second_one_within_five_minutes(after_s, suspected):
    links = LinkSuspicions()
    assert links.take([alert()], WORLD, 0.0) == []
    assert links.take([], WORLD, 5.0) == []
    assert bool(links.take([alert("link_errors")], WORLD, after_s)) is suspected


def test_a_job_that_carries_nothing_may_pause_and_suspects_no_link():
    links, pause = LinkSuspicions(), Observed(kind="traffic_stop", subject="j", subject_type="job")
    assert [links.take([pause], WORLD, at_s) for at_s in (0.0, SECOND_WITHIN_S + 1)] == [[], []]


def test_alerts_of_two_nodes_are_not_two_alerts_of_one():
    links = LinkSuspicions()
    assert links.take([alert(node="a"), alert(node="b")], WORLD, 0.0) == []


def test_two_alerts_of_one_node_at_a_time_are_two():
    begun = LinkSuspicions().take([alert(port="x"), alert("port_down", port="y")], WORLD, 0.0)
    assert set(nodes(begun)) == {("a",)}


def test_an_alert_that_lasts_for_five_minutes_needs_no_second_one():
    links = LinkSuspicions()
    assert links.take([alert()], WORLD, 0.0) == []
    assert links.take([alert()], WORLD, SECOND_WITHIN_S - 1) == []
    assert nodes(links.take([alert()], WORLD, SECOND_WITHIN_S)) == [("a",)]


def test_what_rounds_have_looked_into_suspects_nothing_anew_until_it_was_over():
    links = LinkSuspicions()
    links.take([slow_link("a")], WORLD, 0.0)
    links.checked()
    assert links.open() == []
    assert links.take([slow_link("a")], WORLD, 1.0) == []
    links.take([], WORLD, 2.0)
    assert nodes(links.take([slow_link("a")], WORLD, 3.0)) == [("a",)]


def test_a_suspicion_stays_when_its_finding_ends_with_the_attempt_and_is_given_up_after_an_hour():
    links = LinkSuspicions()
    links.take([hang(culprits=[])], WORLD, 0.0)
    links.take([], WORLD, 60.0)
    assert len(links.open()) == 1
    links.take([], WORLD, KEPT_S)
    assert links.open() == []


def test_who_is_concerned():
    links = LinkSuspicions()
    links.take([slow_link("a", "gone")], WORLD, 0.0)
    assert concerned(links.open(), "abc") == {"a"}
    links.take([hang(culprits=[])], WORLD, 0.0)
    assert concerned(links.open(), "abc") == set("abc")
    assert concerned([], "abc") == set()
