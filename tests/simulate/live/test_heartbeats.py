"""What simulated agents say is what real ones would say of such a job."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pulsetrain.protocol.messages import Heartbeat, Held, decode, encode
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.heartbeats import HeartbeatWriter, Moment, NodeReport
from pulsetrain.simulate.live.job import Holding
from pulsetrain.simulate.live.training import Attempt
from tests.simulate.live.fleets import FLEET, launched, run_until, say


def statuses(heartbeats):
    return {status.rank: status for heartbeat in heartbeats for status in heartbeat.ranks}


def group(status, kind):
    return next(g for g in status.groups if g.group.startswith(kind))


@pytest.mark.parametrize("now_s", [99.5, 100.1, 101.3, 101.9, 102.5, 113.0])
def test_a_heartbeat_is_what_the_protocol_would_write(now_s):
    job = launched()
    run_until(job, 99.0, now_s)
    for heartbeat in say(job, now_s):
        assert isinstance(heartbeat, Heartbeat)
        assert decode(encode(heartbeat)) == heartbeat


def test_every_rank_is_in_one_group_of_each_kind_with_the_members_of_the_mesh():
    job = launched()
    run_until(job, 100.0, 101.0)
    for rank, status in statuses(say(job, 101.0)).items():
        kinds = [g.group.split("-")[0] for g in status.groups]
        assert kinds == ["tp", "pp", "dp", "world"]
        assert all(rank in g.members for g in status.groups)
        assert group(status, "dp").members == tuple(FLEET.spec().dp_peers(rank))
        assert group(status, "world").members == tuple(range(FLEET.ranks))


def test_members_of_a_group_agree_about_it():
    job = launched()
    run_until(job, 100.0, 101.0)
    known = {}
    for status in statuses(say(job, 101.0)).values():
        for each in status.groups:
            assert known.setdefault(each.group, each.members) == each.members


def test_a_hung_ranks_peers_show_the_same_seq_and_the_culprit_one_less():
    job = launched({"kind": "hung_rank", "at_s": 3, "rank": 5})
    run_until(job, 100.0, 110.0)
    ranks = statuses(say(job, 110.0))
    culprit, peers = group(ranks[5], "dp"), set(FLEET.spec().dp_peers(5)) - {5}
    seqs = {group(ranks[r], "dp").enqueued for r in peers}
    assert seqs == {culprit.enqueued + 1}
    assert all(group(ranks[r], "dp").op == "all_reduce" for r in peers)
    assert (culprit.op, ranks[5].state, ranks[5].last_phase) == ("", "stopped", "backward")
    others = set(ranks) - peers - {5}
    assert {group(ranks[r], "world").op for r in others} == {"all_reduce"}
    assert all(group(ranks[r], "dp").completed == group(ranks[r], "dp").enqueued for r in others)


def test_ranks_that_are_silent_are_looked_into_and_those_that_ended_are_not():
    job = launched({"kind": "exit", "at_s": 3, "rank": 6, "code": 7})
    assert [h.activity for h in say(job, 100.1)[:4]] == [()] * 4
    run_until(job, 100.0, 110.0)
    looked = {a.rank for h in say(job, 110.0) for a in h.activity}
    assert looked == set(range(FLEET.ranks)) - {6}


def test_progress_rises_and_its_age_is_the_time_since():
    job = launched()
    run_until(job, 100.0, 104.0)
    first = statuses(say(job, 104.0))
    run_until(job, 104.0, 105.0)
    later = statuses(say(job, 105.0))
    for rank, status in first.items():
        moved = later[rank].progress - status.progress
        assert moved >= 0
        if not moved:
            assert later[rank].progress_age_ns == pytest.approx(status.progress_age_ns + 1e9, abs=1e3)


def test_before_the_first_step_ranks_have_no_group_and_no_step():
    for status in statuses(say(launched(), 99.5)).values():
        assert (status.last_step, status.groups, status.last_phase) == (-1, (), "")


def test_a_standby_says_that_it_lives():
    standby = say(launched(), 101.0)[-1]
    assert (standby.node, standby.ranks, standby.held) == ("sim-00005", (), ())
    assert standby.loops


def test_held_checkpoints_are_those_of_the_node_and_of_its_partner():
    holding = Holding(own=range(4), partners=range(4, 8), steps=(2, 4))
    held = say(launched(), 101.0, holding=holding)[0].held
    assert Held(rank=0, step=2, tier="memory") in held
    assert Held(rank=7, step=4, tier="peer") in held
    assert len(held) == 16


def test_ranks_say_that_they_are_simulated():
    job = launched()
    run_until(job, 100.0, 101.0)
    described = {s.instrumentation for s in statuses(say(job, 101.0, describe=True)).values()}
    assert {json.loads(text)["source"] for text in described} == {"simulated"}


def test_a_heartbeat_of_a_large_fleet_is_no_larger():
    fleet = LiveFleet(nodes=1536, tp=8, pp=8)
    a = Attempt(fleet.spec(), first_step=1, begins_s=0.0)
    moment = Moment(now_s=1.75, positions=a.positions(1.75, np.arange(8)), states={}, resumed_step=-1)
    report = NodeReport(node="sim-00000", seq=1, ts_ns=1, attempt=0, ranks=range(8), at=0, holding=None)
    [text] = HeartbeatWriter(fleet, fleet.spec()).write([report], moment)
    assert len(text) < 4_000
    assert len(decode(text).ranks[0].groups[3].members) == 12_288
