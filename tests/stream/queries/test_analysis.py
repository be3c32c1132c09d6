"""The queries behind the analyzers, on real rows in a real store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.stream.queries import analysis, views
from pulsetrain.stream.queries.queryable import AttemptSteps
from tests.stream.rows import table

pytestmark = pytest.mark.integration

SPANS = [
    # phase, category, parent, duration_ns
    ("data", "data", "", 5),
    ("forward", "compute", "", 100),
    ("all_reduce", "communication", "forward", 60),
    ("backward", "compute", "", 200),
    ("all_reduce", "communication", "backward", 90),
    ("block", "compute", "backward", 50),
    ("recv", "communication", "", 30),
    ("optimizer", "compute", "", 40),
    ("all_reduce", "communication", "optimizer", 10),
    ("send", "communication", "recv", 20),
]


def test_compute_is_net_of_the_communication_inside_it(chdb_store):
    columns = {
        "job": "parts",
        "attempt": [0] * len(SPANS),
        "step": [3] * len(SPANS),
        "rank": [1] * len(SPANS),
        "open": [False] * len(SPANS),
        "phase": [s[0] for s in SPANS],
        "category": [s[1] for s in SPANS],
        "parent": [s[2] for s in SPANS],
        "duration_ns": [s[3] for s in SPANS],
        "blocked_ns": [-1] * len(SPANS),
    }
    chdb_store.insert("spans", table("spans", len(SPANS), **columns), token="parts")
    found = analysis.step_parts(
        chdb_store,
        AttemptSteps(job="parts", attempt=0, first=0, last=10),
        compute=["forward", "backward", "optimizer", "block"],
        communication=["all_reduce", "send", "recv"],
    ).to_pylist()
    assert len(found) == 1
    row = found[0]
    assert row["compute"] == (100 - 60) + (200 - 90) + (40 - 10)
    assert row["wait"] == 60 + 90 + 30 + 10
    assert (row["forward"], row["backward"], row["optimizer"]) == (40, 110, 30)
    assert row["data"] == 5
    assert row["assumed"] == 1
    assert row["unnamed"] == 0


@pytest.mark.parametrize(
    ("category", "compute", "communication", "unnamed"),
    [
        ("compute", ["evaluate"], [], 0),
        ("compute", ["forward"], [], 1),
        ("communication", [], ["evaluate"], 0),
        ("communication", ["evaluate"], [], 1),
        ("other", [], [], 0),
    ],
)
def test_a_phase_that_the_caller_did_not_name_is_told(chdb_store, category, compute, communication, unnamed):
    job = f"unnamed-{category}-{unnamed}"
    columns = {"phase": ["evaluate"], "category": [category], "parent": [""], "open": [False]}
    columns |= {"attempt": [0], "step": [1], "rank": [0]}
    chdb_store.insert("spans", table("spans", 1, job=job, **columns), token=job)
    steps = AttemptSteps(job=job, attempt=0, first=0, last=5)
    (row,) = analysis.step_parts(chdb_store, steps, compute=compute, communication=communication).to_pylist()
    assert row["unnamed"] == unnamed


def test_overlapped_communication_is_not_taken_from_compute(chdb_store):
    """Two buckets overlap most of the backward pass. The rank stood still for 30 of its 100."""
    rows = [
        ("forward", "compute", "", 50, 0),
        ("backward", "compute", "", 100, 30),
        ("block", "compute", "backward", 60, 20),
        ("all_reduce", "communication", "backward", 80, 0),
        ("all_reduce", "communication", "backward", 90, 30),
        ("all_reduce", "communication", "", 500, 0),
    ]
    names = ("phase", "category", "parent", "duration_ns", "blocked_ns")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {"attempt": [0] * 6, "step": [1] * 6, "rank": [0] * 6, "open": [False] * 6}
    chdb_store.insert("spans", table("spans", 6, job="overlap", **columns), token="overlap")
    steps = AttemptSteps(job="overlap", attempt=0, first=0, last=5)
    compute = ["forward", "backward", "block"]
    (row,) = analysis.step_parts(chdb_store, steps, compute=compute, communication=["all_reduce"]).to_pylist()
    assert (row["compute"], row["forward"], row["backward"]) == (120, 50, 70)
    assert (row["wait"], row["assumed"]) == (30, 0)


def test_compute_without_communication_inside_is_told_apart(chdb_store):
    """A block of the backward pass holds the communication, so the pass does too."""
    rows = [
        ("forward", "compute", "", 50),
        ("block", "compute", "forward", 20),
        ("backward", "compute", "", 100),
        ("layer", "compute", "backward", 60),
        ("all_reduce", "communication", "layer", 80),
        ("optimizer", "compute", "", 10),
        ("all_reduce", "communication", "", 500),
        ("data", "data", "", 7),
    ]
    columns = dict(
        zip(("phase", "category", "parent", "duration_ns"), map(list, zip(*rows, strict=True)), strict=True)
    )
    columns |= {"attempt": [0] * 8, "step": [1] * 8, "rank": [0] * 8, "open": [False] * 8}
    columns |= {"blocked_ns": [-1] * 8}
    chdb_store.insert("spans", table("spans", 8, job="undisturbed", **columns), token="undisturbed")
    (row,) = analysis.undisturbed_compute(
        chdb_store,
        AttemptSteps(job="undisturbed", attempt=0, first=0, last=5),
        compute=["forward", "block", "backward", "layer", "optimizer"],
        communication=["all_reduce"],
    ).to_pylist()
    assert row == {"step": 1, "rank": 0, "undisturbed": 60}


def test_nested_phases_count_once_and_other_phases_are_told_apart(chdb_store):
    rows = [
        ("evaluate", "other", "", 70),
        ("gc", "other", "forward", 6),
        ("gc", "other", "", 4),
        ("cpu_wait", "other", "forward", 9),
        ("checkpoint", "checkpoint", "", 50),
        ("device_wait", "other", "", 8),
    ]
    names = ("phase", "category", "parent", "duration_ns")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {"attempt": [0] * 6, "step": [1] * 6, "rank": [0] * 6, "open": [False] * 6}
    columns |= {"blocked_ns": [0, 0, 0, 0, 4, 0]}  # the rank waited for others while it saved
    chdb_store.insert("spans", table("spans", 6, job="others", **columns), token="others")
    steps = AttemptSteps(job="others", attempt=0, first=0, last=5)
    (row,) = analysis.step_parts(chdb_store, steps, compute=["forward"], communication=[]).to_pylist()
    assert (row["other"], row["gc"], row["cpu_wait"], row["checkpoint"]) == (70, 10, 9, 46)
    assert (row["compute"], row["wait"]) == (0, 8)
    phases = {(r["phase"], r["category"]) for r in analysis.phase_names(chdb_store, steps).to_pylist()}
    assert phases == {(phase, category) for phase, category, _, _ in rows}


@pytest.fixture(scope="module")
def job(chdb_store):
    """Two attempts: steps 0..3 of ranks 0 and 1, then step 4 of rank 0 alone."""
    step, rank, attempt = [0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 1] * 4 + [0], [0] * 8 + [1]
    columns = {"job": "extents", "step": step, "rank": rank, "attempt": attempt}
    columns["node"] = [f"n{r}" for r in rank]
    chdb_store.insert("steps", table("steps", 9, **columns, loss=[None] * 8 + [2.5]), token="extents")
    places = {"job": "extents", "rank": [1, 0], "attempt": [0, 0], "node": ["n1", "n0"], "pp": [1, 0]}
    chdb_store.insert("topology", table("topology", 2, **places), token="extents-topology")
    return "extents"


def test_extents_of_a_job_are_newest_attempt_first(chdb_store, job):
    assert analysis.extent(chdb_store, job).to_pylist() == [
        {"attempt": 1, "first_step": 4, "last_step": 4, "ranks": 1},
        {"attempt": 0, "first_step": 0, "last_step": 3, "ranks": 2},
    ]
    assert analysis.attempt_extent(chdb_store, job, 0).to_pylist() == [
        {"attempt": 0, "first_step": 0, "last_step": 3}
    ]
    assert analysis.attempt_extent(chdb_store, job, 7).num_rows == 0
    assert analysis.extent(chdb_store, "nobody").num_rows == 0


def test_steps_nodes_and_topology_are_those_of_the_range(chdb_store, job):
    steps = AttemptSteps(job=job, attempt=0, first=1, last=2)
    rows = analysis.steps(chdb_store, steps).to_pylist()
    assert {(r["step"], r["rank"]) for r in rows} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert {r["loss"] for r in rows} == {None}
    assert analysis.rank_nodes(chdb_store, steps).to_pylist() == [
        {"rank": 0, "node": "n0"},
        {"rank": 1, "node": "n1"},
    ]
    assert [(r["rank"], r["pp"]) for r in analysis.topology(chdb_store, job, 0).to_pylist()] == [
        (0, 0),
        (1, 1),
    ]


def test_a_transfer_takes_as_long_as_its_last_member_spends_in_it(chdb_store):
    spans = [  # step, rank, seq, duration_ns, open
        (0, 0, 1, 90, False),
        (0, 1, 1, 20, False),
        (0, 0, 2, 30, False),
        (0, 1, 2, 40, False),
        (0, 0, 3, 10, True),
        (1, 0, 4, 50, False),
    ]
    step, rank, seq, duration_ns, opened = map(list, zip(*spans, strict=True))
    columns = {"step": step, "rank": rank, "seq": seq, "duration_ns": duration_ns, "open": opened}
    columns |= {"job": "transfers", "attempt": [0] * 6, "bytes": [100] * 6, "group": "dp:1"}
    columns |= {"blocked_ns": [-1] * 6, "node": ["a", "b", "a", "b", "a", "a"]}
    columns |= {"phase": "all_reduce", "category": "communication"}
    chdb_store.insert("spans", table("spans", 6, **columns), token="transfers")
    steps = AttemptSteps(job="transfers", attempt=0, first=0, last=1)
    (row,) = analysis.group_transfers(chdb_store, steps).to_pylist()
    assert row == {
        "step": 0,
        "group": "dp:1",
        "phase": "all_reduce",
        "transfer_ns": 20 + 30,
        "bytes": 200,
        "members": 2,
    }
    (members,) = analysis.group_members(chdb_store, steps).to_pylist()
    assert (members["group"], sorted(members["ranks"])) == ("dp:1", [0, 1])


def test_arrivals_and_transfers_of_buckets_that_overlap(chdb_store):
    """Rank 1 comes 100 ns late to both buckets. Nobody waits for the first. Its end is noticed late."""
    day = 1_790_000_000_000_000_000
    spans = [  # rank, seq, start, duration_ns, blocked_ns
        (0, 1, 0, 400, 0),
        (1, 1, 100, 350, 0),
        (0, 2, 200, 150, 140),
        (1, 2, 300, 50, 50),
    ]
    rank, seq, start, duration_ns, blocked_ns = map(list, zip(*spans, strict=True))
    columns = {"step": [3] * 4, "rank": rank, "seq": seq, "start": [day + s for s in start]}
    columns |= {"duration_ns": duration_ns, "blocked_ns": blocked_ns, "open": [False] * 4, "node": "n"}
    columns |= {"job": "buckets", "attempt": [0] * 4, "bytes": [100] * 4, "group": "dp:1", "peer": [-1] * 4}
    columns |= {"phase": "all_reduce", "category": "communication", "parent": "backward"}
    chdb_store.insert("spans", table("spans", 4, **columns), token="buckets")
    steps = AttemptSteps(job="buckets", attempt=0, first=0, last=3)
    (row,) = analysis.group_transfers(chdb_store, steps).to_pylist()
    assert (row["transfer_ns"], row["bytes"], row["members"]) == (50, 100, 2)
    last = sorted(analysis.last_collectives(chdb_store, steps).to_pylist(), key=lambda r: r["rank"])
    assert [(r["seq"], r["start_ns"] - day, r["end_ns"] - day) for r in last] == [
        (2, 200, 350),
        (2, 300, 350),
    ]
    assert analysis.communication_count(chdb_store, steps).to_pylist() == [{"operations": 4}]
    (overlap,) = analysis.communication_overlap(chdb_store, steps).to_pylist()
    assert overlap == {"total_ns": 950, "covered_ns": 400 + 350}


def test_the_first_transfer_of_a_step_is_told(chdb_store):
    """Rank 0 sends and then receives, rank 1 receives and then sends, and both reduce before that."""
    job, start = "order", 1_700_000_000_000_000_000
    rows = [
        (0, "all_reduce", -1),
        (0, "send", 1),
        (0, "recv", 1),
        (1, "all_reduce", -1),
        (1, "recv", 0),
        (1, "send", 0),
    ]
    both = [(step, *row) for step in (4, 5) for row in rows]
    columns = {
        "step": [step for step, *_ in both],
        "rank": [rank for _, rank, *_ in both],
        "phase": [phase for *_, phase, _ in both],
        "peer": [peer for *_, peer in both],
        "start": [start + 1000 * at for at in range(len(both))],
        "attempt": [0] * len(both),
        "open": [False] * len(both),
        "category": ["communication"] * len(both),
    }
    chdb_store.insert("spans", table("spans", len(both), job=job, **columns), token=job)
    steps = AttemptSteps(job=job, attempt=0, first=5, last=9)
    assert analysis.first_transfers(chdb_store, steps).to_pylist() == [
        {"step": 5, "rank": 0, "phase": "send", "peer": 1},
        {"step": 5, "rank": 1, "phase": "recv", "peer": 0},
    ]


@pytest.mark.parametrize(
    ("told", "counting", "wanted"),
    [
        (range(8), range(8), 2 * 512),  # both replicas of four ranks each
        (range(8), (0, 1, 4, 5), 2 * 512),  # only the first stage sees tokens
        (range(3), range(8), 8 * 512),  # not all ranks have told where they are
        ((), range(8), 8 * 512),
    ],
)
def test_tokens_of_a_replica_count_once(chdb_store, told, counting, wanted):
    """Ranks 0 to 3 are one replica of two stages, and ranks 4 to 7 another one."""
    told, counting = list(told), set(counting)
    job, start = f"replicas-{len(told)}-{len(counting)}", 1_700_000_000_000_000_000
    both = [(step, rank) for step in range(3) for rank in range(8)]
    columns = {
        "step": [step for step, _ in both],
        "rank": [rank for _, rank in both],
        "start": [start + step for step, _ in both],
        "duration_ns": [10**9] * len(both),
        "tokens": [512 * (rank in counting) for _, rank in both],
        "attempt": [0] * len(both),
    }
    chdb_store.insert("steps", table("steps", len(both), job=job, **columns), token=f"{job}-steps")
    places = {"rank": told, "dp": [r // 4 for r in told], "pp": [r // 2 % 2 for r in told]}
    places |= {"cp": [0] * len(told), "attempt": [0] * len(told)}
    if told:
        chdb_store.insert("topology", table("topology", len(told), job=job, **places), token=f"{job}-places")
    curve = views.curve(chdb_store, job).to_pylist()
    assert [round(row["tokens_per_s"]) for row in curve] == [wanted] * 3


@pytest.mark.parametrize(("said", "source"), [("explicit", "explicit"), ("autograd graph", "autograd graph")])
def test_ranks_say_where_the_flops_of_an_attempt_come_from(chdb_store, said, source):
    job, detail = f"flops {said}", f'{{"steps": "inferred", "flops": "{said}"}}'
    row = {"job": job, "attempt": 1, "kind": "instrumentation", "detail": detail}
    chdb_store.insert(
        "events", table("events", 1, **{name: [value] for name, value in row.items()}), token=job
    )
    steps = AttemptSteps(job=job, attempt=1, first=0, last=9)
    assert analysis.flops_source(chdb_store, steps) == source
    assert analysis.flops_source(chdb_store, replace(steps, attempt=0)) == ""


def test_losses_that_are_not_finite_are_those_that_were_logged(chdb_store):
    loss = [1.0, float("nan"), None, float("inf"), float("nan")]
    columns = {"job": "nan", "attempt": [0] * 5, "rank": [0] * 5, "step": [1, 2, 3, 4, 9], "loss": loss}
    chdb_store.insert("steps", table("steps", 5, **columns), token="nan")
    of = AttemptSteps(job="nan", attempt=0, first=0, last=8)
    assert analysis.losses_not_finite(chdb_store, of)["step"].to_pylist() == [2, 4]


def test_the_newest_loss_of_a_rank_is_that_which_it_logged_last(chdb_store):
    nan = float("nan")
    loss = {0: [1.0, nan, None], 1: [nan, 1.0, None], 2: [1.0, nan, nan], 3: [nan, nan, nan]}
    columns = {
        "job": "behind",
        "attempt": [0] * 12,
        "rank": [rank for rank in loss for _ in range(3)],
        "step": [1, 2, 3] * 4,
        "loss": [value for values in loss.values() for value in values],
    }
    chdb_store.insert("steps", table("steps", 12, **columns), token="behind")
    of = AttemptSteps(job="behind", attempt=0, first=0, last=3)
    found = analysis.newest_losses_not_finite(chdb_store, of, [0, 1, 2])
    assert found.to_pylist() == [{"step": 2, "rank": 0}, {"step": 3, "rank": 2}]


def test_the_usual_work_in_groups_leaves_out_what_is_seldom_or_not_stored_yet(chdb_store):
    def row(step, rank, group, phase="all_reduce", size=10, seq=1, peer=-1):
        return step, rank, group, phase, size, seq, peer

    rows = [row(step, 0, "tp", seq=seq) for step in range(5) for seq in range(2)]
    rows += [
        row(step, 1, "tp", seq=seq) for step in range(3) for seq in range(2)
    ]  # its newest are on their way
    rows += [row(2, 0, "log"), *(row(step, 0, "pp", "send", peer=1) for step in range(5))]
    names = ("step", "rank", "group", "phase", "bytes", "seq", "peer")
    columns = {name: [r[i] for r in rows] for i, name in enumerate(names)}
    same = {"job": "work", "attempt": 0, "open": False, "category": "communication"}
    columns |= {name: [value] * len(rows) for name, value in same.items()}
    chdb_store.insert("spans", table("spans", len(rows), **columns), token="work")
    found = analysis.group_work(chdb_store, AttemptSteps(job="work", attempt=0, first=0, last=4)).to_pylist()
    whole = {"group": "tp", "phase": "all_reduce", "operations": 2, "bytes": 20}
    assert sorted(found, key=lambda r: r["rank"]) == [{"rank": rank, **whole} for rank in (0, 1)]
