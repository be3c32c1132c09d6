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
