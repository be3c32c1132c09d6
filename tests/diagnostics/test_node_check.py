"""A check of many nodes: faults first, then slow nodes, at the level that is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pulsetrain.diagnostics.node_check import FULL, LEVELS, LIGHT, NodeCheck
from pulsetrain.diagnostics.rounds import GroupResult
from tests.repository import ROOT

NODES = [f"n{i:02d}" for i in range(12)]


def times(node, slow, number):
    """Healthy nodes differ by less than one percent, in another order in each round."""
    return slow.get(node, 1.0) * (1 + (hash((NODES.index(node), number)) % 89) / 1e4)


def play(level, *, broken=(), slow=None, kinds=None, limit=200, flaky=(), switches=None, apart=(), seen=None):
    """Run all rounds that the check asks for. `flaky` are pairs that fail in the first round alone.

    Nothing passes between two switches of `apart`. `seen` takes the groups of each round.
    """
    switches = switches or {}
    check = NodeCheck(kinds or dict.fromkeys(NODES, ""), level, seed=1, switches=switches)
    number = 0
    while number < limit and (groups := check.next_round()):
        results = []
        if seen is not None:
            seen.append(groups)
        for group in groups:
            alone = {n: times(n, slow or {}, number) for n in group}
            ok = not set(broken) & set(group) and not (number == 0 and group in flaky)
            ok = ok and not (apart and {switches[n] for n in group} == set(apart))
            own = {n: {"compute": s, "compute_mean": s} for n, s in alone.items()}
            seconds = max(alone.values())
            results.append(
                GroupResult(
                    members=group, ok=ok, seconds=seconds, round=number, own_times_s=own if ok else {}
                )
            )
        check.take(results)
        number += 1
    return check.verdict()


def test_levels_say_what_they_find():
    assert set(LEVELS) == {"light", "full"}
    assert all(level.finds and level.limit_s > 0 for level in LEVELS.values())
    assert LIGHT.limit_s < 10
    assert FULL.limit_s < 120


@pytest.mark.parametrize("level", [LIGHT, FULL])
def test_all_healthy(level):
    verdict = play(level)
    assert (verdict.state, verdict.reason) == ("healthy", "")
    assert json.loads(json.dumps(verdict.row()))["faulty"] == {}


def test_light_takes_two_rounds_and_notes_who_is_far_slower():
    verdict = play(LIGHT, slow={"n05": 1.8})
    assert verdict.rounds == 2
    assert (verdict.state, verdict.slow) == ("healthy", None)
    assert list(verdict.noted["products"]) == ["n05"]
    assert list(verdict.noted["all_gathers"]) == ["n05"]


def test_full_names_faulty_and_slow_nodes():
    verdict = play(FULL, broken={"n02"}, slow={"n05": 1.3})
    assert (set(verdict.faults.faulty), set(verdict.slow.slow)) == ({"n02"}, {"n05"})
    row = verdict.row()
    assert row["state"] == "found"
    assert row["slow"]["n05"]["ratio"] == pytest.approx(1.3, rel=0.02)


def test_full_asks_for_one_more_failure_than_light():
    named = {}
    for level in (LIGHT, FULL):
        reason = play(level, broken={"n02"}).faults.faulty["n02"]
        named[level.name] = len(reason.split(" with ")[1].split(" failed")[0].split(", "))
    assert named == {"light": 2, "full": 3}


def test_where_nothing_passes_no_time_is_looked_at():
    verdict = play(FULL, broken=NODES)
    assert verdict.state == "inconclusive"
    assert "no group passed" in verdict.reason
    assert verdict.slow.rounds == 0


def test_a_failure_by_chance_is_inconclusive_and_slow_nodes_are_still_found():
    verdict = play(FULL, slow={"n05": 1.4}, flaky=[("n00", "n01")])
    assert (verdict.faults.state, set(verdict.slow.slow)) == ("inconclusive", {"n05"})
    assert "n00 and n01" in verdict.reason


def test_neighbours_of_one_kind_are_paired():
    kinds = {n: "ab"[i % 2] for i, n in enumerate(NODES)}
    check = NodeCheck(kinds, LIGHT)
    assert all(len({kinds[n] for n in group}) == 1 for group in check.next_round())


SWITCHES = {node: f"s{i // 4}" for i, node in enumerate(NODES)}


def test_neighbours_under_one_switch_come_first_and_only_who_passed_there_meets_other_switches():
    seen = []
    verdict = play(FULL, broken={"n02"}, switches=SWITCHES, seen=seen)
    assert set(verdict.faults.faulty) == {"n02"}
    crossing = [len({SWITCHES[n] for n in g}) > 1 for groups in seen[: verdict.rounds] for g in groups]
    first = [{SWITCHES[n] for n in group} for group in seen[0]]
    assert all(len(switches) == 1 for switches in first)
    between = next(groups for groups in seen if all(len({SWITCHES[n] for n in g}) == 2 for g in groups))
    assert seen.index(between) == 3
    assert "n02" not in {node for group in between for node in group}
    assert any(crossing)


def test_light_asks_for_nothing_between_switches():
    seen = []
    assert play(LIGHT, switches=SWITCHES, seen=seen).state == "healthy"
    assert all(len({SWITCHES[n] for n in group}) == 1 for group in seen[0])


def test_two_switches_between_which_nothing_passes_are_named_and_no_node_is():
    verdict = play(FULL, switches=SWITCHES, apart=("s0", "s1"))
    assert dict(verdict.faults.faulty) == {}
    assert list(verdict.between) == [("s0", "s1")]
    assert verdict.row()["between"][0]["switches"] == ["s0", "s1"]
    assert verdict.state == "found"


def test_before_the_first_round_nothing_is_known():
    assert NodeCheck(dict.fromkeys(NODES, ""), FULL).verdict().state == "inconclusive"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stopped_and_a_slowed_process_are_told_from_six_healthy_ones():
    command = [sys.executable, "-m", "tests.diagnostics.node_processes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert (set(row["faulty"]), set(row["slow"])) == ({"n2"}, {"n5"}), row
