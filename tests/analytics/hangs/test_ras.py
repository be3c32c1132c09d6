"""NCCL RAS reports go through the same diagnosis as other evidence."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pulsetrain.analytics.hangs.ras import judge, parse, verdict
from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import CorruptData


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


def test_blame_passes_through_two_communicators():
    stuck = report({"tp": {10: 8, 11: 7}, "dp": {10: 3, 12: 4}})
    assert judge(stuck, stuck).culprits == (1,)


def test_a_difference_in_one_report_is_no_hang():
    assert judge(report({"tp": {1: 8, 2: 7}}), report({"tp": {1: 9, 2: 8}})).verdict == "none"


def test_a_process_that_does_not_answer_is_named():
    stuck = report({"tp": {1: 8, 2: 8, 3: 8}}, missing=(2,))
    diagnosis = judge(stuck, stuck)
    assert diagnosis.culprits == (1,)


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


def raw(counts, **changes):
    """One communicator of four processes; `changes` replaces fields of the third."""
    ranks = [
        {"rank": i, "host": "n0", "pid": 10 + i, "collective_counts": {"AllReduce": c, "Broadcast": 1}}
        for i, c in enumerate(counts)
    ]
    ranks[2].update(changes)
    return {"communicators": [{"hash": "0x1", "ranks": ranks, "missing_ranks": []}]}


def both(report):
    parsed = parse(json.dumps(report))
    return judge(parsed, parsed)


@pytest.mark.parametrize(
    "counts",
    [
        None,
        "x",
        3,
        [None],
        {"AllReduce": None},
        {"AllReduce": float("nan")},
        {"AllReduce": -1},
        {"AllReduce": 1e30},
    ],
)
def test_counts_that_cannot_be_read_accuse_nobody_and_are_not_called_healthy(counts):
    diagnosis = both(raw((8, 8, 8, 8), collective_counts=counts))
    assert (diagnosis.verdict, diagnosis.culprits) == ("uncertain", ())
    assert both(raw((8, 7, 8, 8), collective_counts=counts)).culprits == (1,)


@pytest.mark.parametrize(
    "changes", [{"pid": None}, {"host": None}, {"pid": "12"}, {"cuda_dev": "x"}, {"rank": 2}]
)
def test_ranks_are_those_of_the_communicator_of_all_whatever_a_process_does_not_tell(changes):
    assert both(raw((8, 8, 7, 8), **changes)).culprits == (2,)


@pytest.mark.parametrize("junk", [None, "x", 3, []])
def test_parts_of_no_sense_are_left_out(junk):
    report = raw((8, 8, 7, 8))
    report["communicators"][0]["ranks"].append(junk)
    report["communicators"][0]["missing_ranks"] = junk
    report["communicators"].append(junk)
    assert both(report).culprits == (2,)


def test_as_many_collectives_of_other_kinds_are_a_desync():
    diagnosis = both(raw((8, 8, 8, 8), collective_counts={"AllReduce": 7, "Broadcast": 2}))
    assert (diagnosis.verdict, diagnosis.culprits) == ("desync", (2,))


def test_a_member_that_is_missing_without_a_process_is_known_by_its_place():
    report = raw((8, 8, 8, 8))
    del report["communicators"][0]["ranks"][2]
    report["communicators"][0]["missing_ranks"] = [{"rank": 2, "unresponsive": True}]
    assert both(report).culprits == (2,)


def test_one_report_alone_proves_nothing_and_a_torn_one_is_noted():
    text = json.dumps(raw((8, 8, 7, 8)))
    assert verdict([("a", text)])["verdict"] == "uncertain"
    diagnosis = verdict([("a", text), ("b", text[:80]), ("c", "\ufeff" + text)])
    assert (diagnosis["verdict"], diagnosis["culprits"], len(diagnosis["notes"])) == ("rank", [2], 1)
    with pytest.raises(CorruptData):
        verdict([("b", text[:80])])


def test_the_command_reads_reports_of_a_folder(tmp_path):
    for name, counts in (("ras-1.json", (8, 8, 7, 8)), ("ras-2.json", (8, 8, 7, 8))):
        (tmp_path / name).write_text(json.dumps(raw(counts)))
    result = CliRunner().invoke(pulsetrain, ["hang", str(tmp_path), "--json"], standalone_mode=False)
    assert result.return_value == 1
    assert json.loads(result.output)["culprits"] == [2]
