"""The rows of a simulated fleet fit the schema and tell of what was planted, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from pulsetrain.analytics.machines import network
from pulsetrain.analytics.machines.network_ports import ports
from pulsetrain.records.arrow import to_table
from pulsetrain.records.columns import Columns
from pulsetrain.simulate.live import records
from pulsetrain.simulate.live.heartbeats import Moment
from pulsetrain.simulate.live.job import Exit
from tests.simulate.live.fleets import FLEET, faults, launched, run_until

S = 10**9


def rows(batch):
    return batch.to_rows()


def first_step(**changes):
    job = launched()
    [step] = [s for h in run_until(job, 100.0, 102.4) for s in h.steps]
    return records.of_step(step, 5 * S, **{"all_spans": True, **changes})


def test_a_step_has_one_row_of_each_rank_that_begins_with_the_step():
    steps, _ = first_step()
    assert {(r["rank"], r["step"], r["start"]) for r in rows(steps)} == {(n, 1, 5 * S) for n in range(16)}


def test_without_all_spans_only_those_of_communication_are_missing():
    (_, every), (_, some) = first_step(), first_step(all_spans=False)
    kept = [r for r in rows(every) if r["category"] != "communication"]
    assert kept == rows(some)
    assert any(r["blocked_ns"] > 0 for r in kept)  # how long they waited is known all the same


def test_a_held_step_shows_who_stands_where():
    job = launched({"kind": "hung_rank", "at_s": 3, "rank": 5})
    run_until(job, 100.0, 110.0)
    [spans] = records.of_held_step(job.attempt, 5 * S)
    flying = {r["rank"]: (r["phase"], r["group"]) for r in rows(spans) if r["open"]}
    assert flying.keys() == set(range(16))
    assert flying[5] == ("backward", "")
    assert {flying[r][1] for r in set(FLEET.spec().dp_peers(5)) - {5}} == {"dp-1"}
    assert {flying[r][1] for r in set(range(16)) - set(FLEET.spec().dp_peers(5))} == {"world"}


def test_topology_follows_the_nodes_of_the_attempt():
    job = launched()
    run_until(job, 100.0, 101.0)
    [placed] = records.of_launch(job.attempt, 9 * S)
    assert {(r["rank"], r["node"]) for r in rows(placed)} == {(n, f"sim-{n // 4:05d}") for n in range(16)}


def heartbeat_rows(job, now_s):
    nodes = FLEET.names[:4]
    ranks = np.arange(16)
    moment = Moment(now_s=now_s, positions=job.positions(ranks, now_s), states=job.states(), resumed_step=-1)
    return rows(records.of_heartbeats(FLEET, 0, nodes, ranks, moment, 7 * S, 3))


def test_a_heartbeat_is_one_row_of_each_node_and_one_of_each_rank():
    job = launched({"kind": "hung_rank", "at_s": 3, "rank": 5})
    run_until(job, 100.0, 110.0)
    made = heartbeat_rows(job, 110.0)
    assert [r["rank"] for r in made] == [-1] * 4 + list(range(16))
    by_rank = {r["rank"]: r for r in made}
    assert by_rank[9]["node"] == "sim-00002"
    assert (by_rank[5]["state"], by_rank[5]["last_phase"]) == ("stopped", "backward")
    assert (by_rank[0]["state"], by_rank[0]["last_phase"]) == ("sleeping", "all_reduce")
    assert by_rank[5]["phase_age_ns"] > 5 * S
    assert {r["last_step"] for r in made} == {1}


def test_heartbeats_before_the_first_step_name_no_step():
    assert {r["last_step"] for r in heartbeat_rows(launched(), 99.5)} == {-1}


def counters(plan, seconds):
    return Columns.concat(
        [
            records.of_counters(FLEET, FLEET.names[:4], plan, at_s, at_s, int(at_s * S))
            for at_s in range(10, seconds, 10)
        ]
    )


def test_the_counters_of_a_flapping_link_name_it_and_nobody_else():
    plan = faults({"kind": "flapping_link", "at_s": 20, "node": "sim-00003", "port": 2})
    found = network.find(ports(to_table(counters(plan, 70))), now_ns=70 * S)
    assert {(f.kind, f.subject) for f in found} == {("link_flap", plan[0].subject)}


def test_the_counters_of_a_healthy_fleet_find_nothing():
    found = network.find(ports(to_table(counters((), 70))), now_ns=70 * S)
    assert [getattr(f, "kind", "healthy") for f in found] == ["healthy"]


def test_a_checkpoint_has_every_stage_of_every_rank_with_tiers_and_bytes():
    made = rows(records.of_checkpoint(FLEET, 0, 4, 5 * S))
    assert len(made) == 16 * len(records.STAGES)
    assert {(r["stage"], r["tier"]) for r in made} == {(stage, tier) for stage, tier, _ in records.STAGES}
    assert {r["bytes"] for r in made} == {FLEET.checkpoint_bytes}
    copy = next(r for r in made if r["stage"] == "copy")
    assert copy["duration_ns"] == pytest.approx(FLEET.checkpoint_bytes / 8e9 * S, rel=0.11)
    assert made == rows(records.of_checkpoint(FLEET, 0, 4, 5 * S))


def test_the_last_words_of_a_rank_are_lines_of_its_log():
    exit_ = Exit(node="sim-00001", rank=5, code=7)
    lines = [records.Line(ts_ns=S, exit=exit_, attempt=0, message=m) for m in records.last_words(7)]
    made = rows(records.of_lines(FLEET, lines))
    assert made[-1]["severity"] == "error"
    assert {(r["node"], r["rank"], r["source"]) for r in made} == {("sim-00001", 5, "stderr")}


def test_an_event_says_who_simulates():
    [row] = rows(records.of_event(FLEET, "simulated", {"a": 1}, S, node="n", rank=3))
    assert (row["kind"], row["actor"], row["rank"]) == ("simulated", "pulsetrain simulate", 3)
