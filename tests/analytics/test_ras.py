"""NCCL RAS reports feed the same blame graph."""

from __future__ import annotations

import json

import pytest

from pulsetrain.analytics.ras import judge, parse
from pulsetrain.stream.errors import CorruptData


def report(communicators, missing=()):
    """communicators: name -> {pid: count}."""
    return parse(
        json.dumps(
            {
                "communicators": [
                    {
                        "hash": name,
                        "size": len(counts),
                        "ranks": [
                            {
                                "rank": i,
                                "host": "n0",
                                "pid": pid,
                                "collective_counts": {"AllReduce": c, "Broadcast": 1},
                            }
                            for i, (pid, c) in enumerate(counts.items())
                            if pid not in missing
                        ],
                        "missing_ranks": [
                            {"rank": 0, "host": "n0", "pid": p, "unresponsive": True}
                            for p in counts
                            if p in missing
                        ],
                    }
                    for name, counts in communicators.items()
                ]
            }
        )
    )


def test_blame_runs_through_two_communicators():
    stuck = report({"tp": {10: 8, 11: 7}, "dp": {10: 3, 12: 4}})
    assert judge(stuck, stuck).culprits == (1,)


def test_a_difference_in_one_report_is_no_hang():
    assert judge(report({"tp": {1: 8, 2: 7}}), report({"tp": {1: 9, 2: 8}})).verdict == "none"


def test_a_process_that_does_not_answer_is_named():
    stuck = report({"tp": {1: 8, 2: 8, 3: 8}}, missing=(2,))
    found = judge(stuck, stuck)
    assert found.culprits == (1,)


def test_global_ranks_come_from_host_and_process():
    stuck = report({"tp": {10: 8, 11: 7}})
    assert judge(stuck, stuck, {("n0", 10): 40, ("n0", 11): 41}).culprits == (41,)


@pytest.mark.parametrize("text", ["", "[]", '{"communicators": [{"ranks": [{}]}]}', "null"])
def test_what_is_no_report_is_corrupt_data(text):
    with pytest.raises(CorruptData):
        parse(text)


def test_the_order_of_communicators_changes_nothing():
    names = {"tp": {10: 8, 11: 7}, "dp": {10: 3, 12: 4}}
    turned = {name: names[name] for name in reversed(names)}
    globally = {("n0", 10): 0, ("n0", 11): 1, ("n0", 12): 2}
    straight, other = (judge(r, r, globally) for r in (report(names), report(turned)))
    assert (straight.culprits, straight.verdict) == (other.culprits, other.verdict)


@pytest.mark.parametrize("shift", [1, 40, 7000])
def test_renaming_processes_and_ranks_renames_the_answer(shift):
    stuck = report({"tp": {10 + shift: 8, 11 + shift: 7}})
    names = {("n0", 10 + shift): shift, ("n0", 11 + shift): shift + 1}
    assert judge(stuck, stuck, names).culprits == (shift + 1,)


@pytest.mark.parametrize("behind", [1, 2, 100])
def test_whoever_is_further_behind_is_the_culprit_all_the_same(behind):
    stuck = report({"tp": {1: 200, 2: 200, 3: 200 - behind}})
    assert judge(stuck, stuck).culprits == (2,)


def test_no_communicator_and_one_process_are_no_hang():
    for nothing in (report({}), report({"tp": {1: 8}})):
        assert judge(nothing, nothing).culprits == ()
