"""Timings from tables and from a store that is asked in pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.slowness import fail_slow, imbalance, load_timings, straggler
from pulsetrain.analytics.slowness.timings import PARTS
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.stream.queries import analysis
from pulsetrain.stream.queries.queryable import AttemptSteps
from tests.analytics.fleet import fleet, timings

STEPS = AttemptSteps(job="j", attempt=0, first=0, last=19)


class FakeStore:
    """Answers the queries of `load` from a fleet, and counts what was asked."""

    def __init__(self, columns, transfers=(), work=()):
        self.columns, self.asked, self.transfers, self.work = columns, [], transfers, work

    def query(self, sql, params=None):
        self.asked.append((sql, params))
        columns = {n: np.asarray(v) for n, v in self.columns.items()}
        if "span_rollup" in sql and "DISTINCT" in sql:
            more = ["recv"] if self.transfers else []
            categories = ["compute", *["communication"] * (1 + len(more))]
            return pa.table({"phase": ["forward", "all_reduce", *more], "category": categories})
        if "AS operations FROM span_rollup" in sql:
            return pa.table({"operations": [len(self.work)]})
        if "HAVING operations" in sql:
            names = ("rank", "group", "phase", "operations", "bytes")
            return pa.table({n: [row[i] for row in self.work] for i, n in enumerate(names)})
        if "argMin((s.phase, s.peer)" in sql:
            return pa.Table.from_pylist(
                [
                    {"step": step, "rank": rank, "phase": phase, "peer": peer}
                    for step in range(params["first"], params["last"] + 1)
                    for rank, phase, peer in self.transfers
                ]
            )
        if "FROM topology" in sql or "any(node) AS node FROM steps" in sql:
            _, first = np.unique(columns["rank"], return_index=True)
            names = ("rank", "node", "pp", "dp") if "topology" in sql else ("rank", "node")
            return pa.table({n: columns[n][first] for n in names})
        keep = (columns["step"] >= params["first"]) & (columns["step"] <= params["last"])
        if "newest_loss" in sql:
            keep &= np.isin(columns["rank"], params["ranks"])
            last = {int(r): int(s) for s, r in zip(columns["step"][keep], columns["rank"][keep], strict=True)}
            keep &= columns["step"] == np.array([last.get(int(r), -1) for r in columns["rank"]])
        if "NOT isFinite" in sql:
            keep &= ~np.isfinite(columns["loss"])
            return pa.table({n: columns[n][keep] for n in ("step", "rank")})
        names = PARTS if "span_rollup" in sql else ("duration_ns", "tokens", "flops", "loss", "grad_norm")
        table = pa.table({n: columns[n][keep] for n in ("step", "rank", *names)})
        if "compute" not in params:
            return table
        named = "forward" in params["compute"] and "all_reduce" in params["communication"]
        return table.append_column("unnamed", pa.array([int(not named)] * table.num_rows, pa.int8()))


def same(a, b):
    for name in (*a.parts, *a.numbers):
        left, right = (job.parts.get(name, job.numbers.get(name)) for job in (a, b))
        assert np.array_equal(left, right, equal_nan=True), name
    assert a.nodes.tolist() == b.nodes.tolist()
    assert a.stages.tolist() == b.stages.tolist()
    assert a.replicas.tolist() == b.replicas.tolist()


def test_a_store_gives_what_its_tables_give():
    columns = fleet(steps=20)
    loaded = load_timings.load(FakeStore(columns), STEPS, first_step=0, now_ns=5)
    same(loaded, timings(columns))
    assert (loaded.job, loaded.now_ns, loaded.topology_known) == ("j", 5, True)


PIPELINE = [(rank, "recv" if rank >= 4 else "send", (rank + 4) % 8) for rank in range(8)]


@pytest.mark.parametrize("rows", [0, 8], ids=["no mesh", "assumed mesh"])
@pytest.mark.parametrize(
    ("transfers", "wanted"),
    [
        (PIPELINE, [0, 0, 0, 0, 1, 1, 1, 1]),
        ([(rank, "send", rank ^ 1) for rank in range(8)], [0] * 8),
        (PIPELINE[:7], list(range(8))),
    ],
    ids=["pipeline", "ring", "a rank unseen"],
)
def test_without_a_mesh_the_stages_are_read_from_the_transfers(rows, transfers, wanted):
    columns = fleet(steps=20) | {"pp": np.zeros(160, np.int64)}
    columns["dp"] = columns["rank"]
    store = FakeStore(columns, transfers)
    read = load_timings.timings_builder(
        store, STEPS, nodes := analysis.rank_nodes(store, STEPS), ["forward"], ["recv"]
    )
    topology = analysis.topology(store, "j", 0).slice(0, rows)
    load_timings.read_order(read, store, STEPS, topology)
    found = read.timings(nodes, topology, job="j", attempt=0, first_step=0, now_ns=5)
    assert found.stages.tolist() == wanted
    assert read.moved(5, 25, until=20).order == read.order


def feeding(job):
    """Transfers of a rank that feeds all others, and of a chain of four stages of two ranks."""
    if job == "feeder":
        return [(0, "send", 1), *((rank, "recv", 0) for rank in range(1, 8))]
    return [(rank, "recv" if rank >= 2 else "send", rank - 2 if rank >= 2 else 2) for rank in range(8)]


@pytest.mark.parametrize(("job", "said"), [("feeder", []), ("chain", ["3"])])
def test_an_uneven_pipeline_is_one_that_is_known_to_be_a_pipeline(job, said):
    columns = fleet(steps=20, stages=4) | {"pp": np.zeros(160, np.int64)}
    heavy = columns["rank"] > 0 if job == "feeder" else columns["rank"] >= 6
    for part in ("compute", "forward", "backward", "optimizer"):
        columns[part] = columns[part] * np.where(heavy, 9.0, 1.0)
    loaded = load_timings.load(FakeStore(columns, feeding(job)), STEPS, first_step=0, now_ns=5)
    assert len(np.unique(loaded.stages)) == (2 if job == "feeder" else 4)
    verdicts = imbalance.stages(loaded)
    assert [f.subject for f in findings(verdicts)] == said
    assert isinstance(verdicts[0], Finding if said else Inconclusive)


def test_a_mesh_that_tells_stages_is_believed():
    columns = fleet(steps=20)
    store = FakeStore(columns, PIPELINE[::-1])
    loaded = load_timings.load(store, STEPS, first_step=0, now_ns=5)
    same(loaded, timings(columns))
    assert not any("argMin((s.phase" in sql for sql, _ in store.asked)


def test_a_mesh_that_only_splits_tensors_does_not_tell_why_ranks_send():
    columns = fleet(steps=20) | {"pp": np.zeros(160, np.int64)}
    store = FakeStore(columns, PIPELINE)
    read = load_timings.timings_builder(
        store, STEPS, nodes := analysis.rank_nodes(store, STEPS), ["forward"], ["recv"]
    )
    topology = pa.table({"rank": range(8), "node": ["n"] * 8, "pp": [0] * 8, "tp": [0, 1] * 4})
    load_timings.read_order(read, store, STEPS, topology)
    found = read.timings(nodes, topology, job="j", attempt=0, first_step=0, now_ns=5)
    assert found.stages.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize(("stages", "wanted"), [([0, 1, 1], [-2, 0, 1, 1]), ([0, 0, 0], [-1, 0, 0, 0])])
def test_a_rank_whose_stage_has_not_come_yet_is_compared_with_nobody_in_a_pipeline(stages, wanted):
    shape = {"step": [5] * 4, "rank": [0, 1, 2, 3]}
    topology = pa.table({"rank": [1, 2, 3], "pp": stages, "cp": [0, 1, 0]})
    steps = pa.table({**shape, "duration_ns": [100] * 4})
    job = load_timings.from_tables(
        steps=steps, parts=pa.table({**shape, "compute": [50] * 4}), topology=topology
    )
    assert job.stages.tolist() == wanted
    assert job.contexts.tolist() == [-1, 0, 1, 0]


def test_a_device_computes_on_while_the_thread_that_feeds_it_waits_for_a_processor():
    shape = {"step": [5, 5], "rank": [0, 1]}
    steps = pa.table({**shape, "duration_ns": [100, 100]})
    parts = {"compute": [50, 50], "cpu_wait": [25, 25], "off_cpu": [5, 5], "on_device": [1, 0]}
    job = load_timings.from_tables(
        steps=steps, parts=pa.table({**shape, **parts}), topology=pa.table({"rank": [0, 1]})
    )
    assert job.on_device
    assert job.parts["cpu_wait"][0].tolist() == [0, 25]
    assert job.parts["compute"][0].tolist() == [50, 25]


def test_a_large_fleet_is_read_in_pieces_of_bounded_size(monkeypatch):
    columns = fleet(steps=20)
    monkeypatch.setattr(load_timings, "CELLS_AT_ONCE", 8 * 6)
    store = FakeStore(columns)
    same(load_timings.load(store, STEPS, first_step=0, now_ns=0), timings(columns))
    ranges = {(p["first"], p["last"]) for sql, p in store.asked if "max(duration_ns)" in sql}
    assert ranges == {(0, 5), (6, 11), (12, 17), (18, 19)}


def test_the_query_is_told_which_phases_compute_and_communicate():
    store = FakeStore(fleet(steps=20))
    load_timings.load(store, STEPS, first_step=0, now_ns=0)
    (params,) = [p for _, p in store.asked if "compute" in p]
    assert (params["compute"], params["communication"]) == (["forward"], ["all_reduce"])


def test_steps_that_nobody_has_are_no_rows_and_missing_cells_are_nan():
    columns = fleet(steps=20)
    keep = (columns["step"] != 7) & ~((columns["step"] == 9) & (columns["rank"] == 2))
    job = timings({name: values[keep] for name, values in columns.items()})
    assert job.steps.tolist() == [s for s in range(20) if s != 7]
    row = job.steps.tolist().index(9)
    assert np.isnan(job.parts["compute"][row, 2])
    assert np.isfinite(job.parts["compute"][row, [0, 1, 3]]).all()


def test_a_logged_nan_is_told_from_nothing_logged():
    steps = pa.table({"step": [0, 0], "rank": [0, 1], "loss": pa.array([float("nan"), None])})
    empty = pa.table({"step": pa.array([], pa.int64()), "rank": pa.array([], pa.int64())})
    job = load_timings.from_tables(steps=steps, parts=empty, topology=empty)
    assert np.isnan(job.numbers["loss"]).all()
    assert job.logged["loss"].tolist() == [[True, False]]
    assert not job.topology_known
    assert job.stages.tolist() == [-1, -1]


@pytest.mark.parametrize("known", [True, False])
def test_the_node_is_what_the_steps_say_else_the_topology(known):
    steps = {"step": [0, 0], "rank": [0, 1]} | ({"node": ["a", "b"]} if known else {})
    topology = pa.table({"rank": [0, 1], "node": ["x", "y"], "pp": [0, 1]})
    parts = pa.table({"step": [0], "rank": [0]})
    job = load_timings.from_tables(steps=pa.table(steps), parts=parts, topology=topology)
    assert job.nodes.tolist() == (["a", "b"] if known else ["x", "y"])


def test_the_columns_of_the_fake_are_those_of_the_queries():
    """The fake answers by table and by the words of the SELECT, so those must stay what they are."""
    store = FakeStore(fleet(steps=20))
    assert "duration_ns" in analysis.steps(store, STEPS).column_names
    assert set(PARTS) <= set(analysis.step_parts(store, STEPS, compute=[], communication=[]).column_names)


def test_without_phases_own_time_is_what_a_rank_did_not_stand_still():
    shape = {"step": [5, 5, 6, 6], "rank": [0, 1, 0, 1]}
    steps = pa.table({**shape, "duration_ns": [100, 100, 100, 100]})
    parts = {
        "compute": [0, 0, 0, 0],
        "wait": [30, 10, 40, 20],
        "data": [5, 5, 5, 5],
        "waits_known": [1, 1, 1, 0],
    }
    topology = pa.table({"rank": [0, 1]})
    job = load_timings.from_tables(steps=steps, parts=pa.table({**shape, **parts}), topology=topology)
    compute = job.parts["compute"]
    assert compute[0].tolist() == [65, 85]
    assert compute[1, 0] == 55
    assert np.isnan(compute[1, 1])  # a wait that nobody measured


def resized(*, waits_recorded):
    """Four ranks that compute 100 in each of 120 steps, from the 60th on one after another on one device."""
    step, rank = (grid.ravel() for grid in np.meshgrid(np.arange(120), np.arange(4), indexing="ij"))
    turns = (step >= 60) * rank * 100
    whole = np.where(step >= 60, 410, 110) + step % 3
    parts = {"step": step, "rank": rank, "compute": np.full(480, 100), "wait": whole - 100}
    parts |= {"device_wait": turns * waits_recorded, "waits_known": np.ones(480, int)}
    steps = pa.table({"step": step, "rank": rank, "duration_ns": whole})
    topology = pa.table({"rank": [0, 1, 2, 3], "node": ["a"] * 4})
    return load_timings.from_tables(steps=steps, parts=pa.table(parts), topology=topology)


def test_turns_on_a_shared_device_are_no_part_of_a_steps_time():
    job = resized(waits_recorded=True)
    assert job.shares_devices
    assert job.numbers["duration_ns"][[0, 90]].tolist() == [[110] * 4, [110] * 4]
    assert job.parts["wait"][90].tolist() == [10] * 4
    assert not resized(waits_recorded=False).shares_devices


def test_a_job_that_was_resized_is_not_slow():
    assert [type(v) for v in fail_slow.find(resized(waits_recorded=True))] == [Healthy]
    assert any(isinstance(v, Finding) for v in fail_slow.find(resized(waits_recorded=False)))
    assert not any(isinstance(v, Finding) for v in straggler.find(resized(waits_recorded=True)))


class Overlapping(FakeStore):
    """A recording in which nobody measured how long ranks stood still, with buckets in flight together."""

    covered_ns, undisturbed_ratio = 100, 0.0

    def query(self, sql, params=None):
        if "covered_ns" in sql:
            return pa.table({"total_ns": [150], "covered_ns": [self.covered_ns]})
        if "AS undisturbed" in sql:
            rows = super().query("SELECT step, rank FROM steps", params)
            share = np.where(rows.column("rank").to_numpy() == 3, 1.3, 1.0) * self.undisturbed_ratio
            told = rows.column("duration_ns").to_numpy() * share
            return pa.table({"step": rows["step"], "rank": rows["rank"], "undisturbed": told})
        table = super().query(sql, params)
        if "compute" in table.column_names:
            table = table.append_column("assumed", pa.array(np.ones(table.num_rows)))
        return table


def test_own_time_is_not_known_where_communication_overlaps_and_nobody_measured_the_waits():
    store = Overlapping(fleet(steps=20))
    job = load_timings.load(store, STEPS, first_step=0, now_ns=0)
    assert not np.isfinite(job.parts["compute"]).any()
    verdict = straggler.find(job)
    assert isinstance(verdict[0], Inconclusive)
    assert "overlaps" in verdict[0].reason
    store.covered_ns = 150
    assert np.isfinite(load_timings.load(store, STEPS, first_step=0, now_ns=0).parts["compute"]).all()


def test_under_overlap_phases_without_communication_tell_who_is_slow():
    store = Overlapping(fleet(steps=20))
    store.undisturbed_ratio = 0.3
    job = load_timings.load(store, STEPS, first_step=0, now_ns=0)
    assert np.isnan(job.parts["backward"]).all()
    assert [f.subject for f in findings(straggler.find(job))] == ["3"]
    store.undisturbed_ratio = 0.05  # too little of a step to stand for the rest
    assert load_timings.load(store, STEPS, first_step=0, now_ns=0).unknown


WORLD = [(rank, "world", "all_reduce", 1, 8) for rank in range(8)]
ACTORS = [(rank, "1", "all_reduce", 4, 1 << 20) for rank in range(6)]


def test_ranks_with_process_groups_of_their_own_are_a_cohort_of_their_own():
    columns = fleet(steps=40, stages=1, slow={6: 1.8, 7: 1.8}) | {"pp": np.full(320, -1)}
    steps = AttemptSteps(job="j", attempt=0, first=0, last=39)
    alike = load_timings.load(FakeStore(columns), steps, first_step=0, now_ns=5)
    assert [f.severity for f in findings(straggler.find(alike))] == ["critical"]
    critics = [(rank, "2", "all_gather", 9, 1 << 20) for rank in (6, 7)]
    store = FakeStore(columns, work=[*WORLD, *ACTORS, *critics])
    loaded = load_timings.load(store, steps, first_step=0, now_ns=5)
    assert [cohort.tolist() for cohort in loaded.cohorts] == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert not findings(straggler.find(loaded))
    asked = [params for sql, params in store.asked if "HAVING operations" in sql]
    assert [(params["first"], params["last"]) for params in asked] == [(33, 37)]


@pytest.mark.parametrize(("last", "most"), [(7, 1000), (39, 7)], ids=["early", "too many"])
def test_of_few_steps_or_too_many_operations_the_groups_are_not_read(last, most, monkeypatch):
    monkeypatch.setattr(load_timings, "GROUP_OPERATIONS", most)
    store = FakeStore(fleet(steps=40), work=WORLD)
    steps = AttemptSteps(job="j", attempt=0, first=0, last=last)
    loaded = load_timings.load(store, steps, first_step=0, now_ns=5)
    assert len(loaded.cohorts) == 2
    assert not [sql for sql, _ in store.asked if "HAVING operations" in sql]
