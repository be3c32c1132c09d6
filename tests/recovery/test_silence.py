"""When a connected node that says nothing is lost, and when it is only late."""

import pytest

from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.policy import Policy
from pulsetrain.recovery.silence import Silence
from tests.recovery.builders import S, heartbeat, hello, status
from tests.recovery.test_membership import formed

POLICY = Policy(heartbeat_timeout_s=2.5, silent_node_s=30.0)


def hear(members, name, *ranks, at):
    node = members.nodes[name]
    node.heard_s = at
    node.take_heartbeat(heartbeat(name, *ranks), at)


def silent_b(members, now_s):
    return Silence(members, POLICY, now_s).verdict(members.nodes["b"])


def quiet(rank, seconds):
    return status(rank, progress_age_ns=int(seconds * S))


def test_a_silent_node_is_lost_once_all_other_ranks_stand_still_as_well():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 2.4), quiet(1, 9.0), at=2.5)
    assert silent_b(members, 2.55) == ""
    assert silent_b(members, 2.7) == "no heartbeat for 2.7 s"


def test_a_silent_node_whose_peers_train_on_is_only_late():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 0.1), quiet(1, 9.0), at=20.0)
    assert silent_b(members, 20.0) == ""


def test_at_last_silence_is_a_loss_whatever_the_others_do():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 0.1), at=30.0)
    assert silent_b(members, 30.0) == ""
    assert silent_b(members, 30.1) == "no heartbeat for 30.1 s"


def test_the_only_node_of_a_job_is_only_late():
    members = formed("b", count=1)
    assert silent_b(members, 29.0) == ""
    assert silent_b(members, 30.1)


def test_when_nobody_is_heard_nobody_is_lost_for_it():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 9.0), at=0.0)
    assert silent_b(members, 20.0) == ""


def test_nodes_that_run_no_rank_hold_nobody_up():
    members = formed("a", "b")
    hear(members, "a", at=2.5)
    assert silent_b(members, 2.6)


def test_a_node_that_was_as_late_before_is_given_twice_that_time():
    members = formed("a", "b")
    members.nodes["b"].heard(4.0)
    hear(members, "a", quiet(0, 20.0), at=12.0)
    assert silent_b(members, 12.0) == ""
    hear(members, "a", quiet(0, 20.0), at=12.2)
    assert silent_b(members, 12.2) == "no heartbeat for 8.2 s"


def test_a_job_whose_steps_take_long_is_given_twice_its_longest_step():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 9.0), at=1.0)
    hear(members, "a", status(0, progress=10), at=2.0)
    hear(members, "a", status(0, progress=10, progress_age_ns=10 * S), at=12.0)
    assert silent_b(members, 12.0) == ""
    hear(members, "a", status(0, progress=10, progress_age_ns=19 * S), at=21.0)
    assert silent_b(members, 21.0) == "no heartbeat for 21.0 s"


def test_time_before_the_first_step_says_nothing_about_later_silence():
    members = formed("a", "b")
    hear(members, "a", status(0, last_step=-1, progress_age_ns=20 * S), at=0.5)
    hear(members, "a", status(0, progress=10), at=1.0)
    hear(members, "a", status(0, progress=10, progress_age_ns=3 * S), at=4.0)
    assert silent_b(members, 4.0)


@pytest.mark.parametrize("state", [NodeState.STANDBY, NodeState.LEFT])
def test_a_silent_standby_costs_nothing_and_is_lost_at_once(state):
    members = formed("a", "b")
    members.nodes["b"].state = state
    assert silent_b(members, 2.4) == ""
    assert silent_b(members, 2.6)


def test_the_nodes_of_a_large_job_are_gone_through_once_and_not_once_for_each(monkeypatch):
    members = formed("a", "b", "c", count=3)
    for name in "abc":
        hear(members, name, quiet(0, 9.0), at=0.0)
    hear(members, "c", quiet(4, 9.0), at=9.0)
    calls = []
    active, present = members.active, members.present
    monkeypatch.setattr(members, "active", lambda: calls.append("active") or active())
    monkeypatch.setattr(members, "present", lambda: calls.append("present") or present())
    silence = Silence(members, POLICY, 9.0)
    verdicts = [silence.verdict(members.nodes[name]) for name in "abc"]
    assert verdicts == ["no heartbeat for 9.0 s", "no heartbeat for 9.0 s", ""]
    assert calls.count("active") == 2
    assert calls.count("present") == 1


def test_before_the_first_step_a_silent_node_is_only_late_for_longer():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 20.0), at=16.0)
    members.nodes["b"].heard_s = 2.0

    def verdict(now_s):
        return Silence(members, POLICY, now_s, starting=True).verdict(members.nodes["b"])

    assert verdict(17.0) == ""
    assert verdict(17.1) == "no heartbeat for 15.1 s"


def test_a_policy_may_be_as_impatient_at_the_start_as_later():
    members = formed("a", "b")
    hear(members, "a", quiet(0, 9.0), at=2.5)
    policy = Policy(heartbeat_timeout_s=2.5, starting_silence_s=0.0)
    assert Silence(members, policy, 2.7, starting=True).verdict(members.nodes["b"])


def test_agents_that_report_rarely_by_their_configuration_are_not_lost_for_it():
    members = formed("a", "b", heartbeat_ns=5 * S)
    hear(members, "a", quiet(0, 0.1), at=5.0)
    hear(members, "a", quiet(0, 4.0), at=10.0)
    assert silent_b(members, 12.4) == ""
    hear(members, "a", quiet(0, 12.0), at=12.0)
    assert silent_b(members, 12.6) == "no heartbeat for 12.6 s"


def test_one_agent_that_reports_rarely_does_not_look_like_a_rank_that_stands_still():
    members = formed("a", "b")
    members.nodes["a"].hello = hello("a", heartbeat_ns=8 * S)
    hear(members, "a", quiet(0, 0.1), at=15.0)
    assert silent_b(members, 22.0) == ""


def test_at_last_silence_is_a_loss_only_after_some_heartbeats_of_its_own():
    members = formed("a", "b", heartbeat_ns=40 * S)
    hear(members, "a", quiet(0, 0.1), at=80.0)
    assert silent_b(members, 99.0) == ""
    assert silent_b(members, 100.1) == "no heartbeat for 100.1 s"
