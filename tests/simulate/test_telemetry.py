"""The fleet generator keeps the laws of a real job, and plants what it was told to plant."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.records.arrow import arrow_schema
from pulsetrain.simulate.spec import FleetSpec, parse_fault
from pulsetrain.simulate.telemetry import telemetry


def emit(**changes):
    faults = tuple(parse_fault(f) for f in changes.pop("faults", ()))
    spec = FleetSpec(**({"ranks": 8, "tp": 2, "pp": 2, "steps": 6} | changes), faults=faults)
    tables = {}
    for record, table in telemetry(spec):
        tables.setdefault(record, []).append(table)
    return {record: pa.concat_tables(parts) for record, parts in tables.items()}


def column(table, name):
    return np.asarray(table[name].combine_chunks().cast(pa.int64()))


def mean_ns(table, rank, phase, parent=""):
    mask = pc.and_(
        pc.equal(table["rank"], rank),
        pc.and_(
            pc.equal(table["phase"].cast(pa.string()), phase),
            pc.equal(table["parent"].cast(pa.string()), parent),
        ),
    )
    return pc.mean(table.filter(mask)["duration_ns"]).as_py() or 0


def test_every_table_has_the_records_schema():
    for record, table in emit().items():
        assert table.schema.equals(arrow_schema(record))


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    assert emit(seed=3)["spans"].equals(emit(seed=3)["spans"])
    assert not emit(seed=3)["spans"].equals(emit(seed=4)["spans"])


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 3]),
    dp=st.integers(1, 3),
    microbatches=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_a_ranks_spans_never_overlap_but_inside_their_parent(tp, pp, dp, microbatches, seed):
    spans = emit(ranks=tp * pp * dp, tp=tp, pp=pp, steps=2, microbatches=microbatches, seed=seed)["spans"]
    phase, parent = (spans[name].cast(pa.string()) for name in ("phase", "parent"))
    top = spans.filter(pc.and_(pc.equal(parent, ""), pc.not_equal(phase, "send")))
    rank, start, length = column(top, "rank"), column(top, "start"), column(top, "duration_ns")
    for r in range(tp * pp * dp):
        order = np.argsort(start[rank == r], kind="stable")
        begin = start[rank == r][order]
        end = begin + length[rank == r][order]
        assert (begin[1:] - end[:-1] > -1000).all()


def transfers(spans, phase):
    """The rows of sends or receives by group, number, and who gave to whom."""
    rows = [row for row in spans.to_pylist() if row["phase"] == phase]
    ends = ("rank", "peer") if phase == "send" else ("peer", "rank")
    return {(row["group"], row["seq"], *(row[end] for end in ends)): row for row in rows}


def test_every_receive_has_its_send_on_the_neighbouring_stage():
    spans = emit(ranks=12, tp=2, pp=3, steps=2)["spans"]
    sends, receives = transfers(spans, "send"), transfers(spans, "recv")
    assert (
        len(sends) == 2 * 4 * 2 * 4 * 2
    )  # steps, microbatches, directions, ranks of a stage, pairs of stages
    assert receives.keys() <= sends.keys()
    assert {abs(row["rank"] - row["peer"]) for row in sends.values()} == {4}
    for key, received in receives.items():
        sent = sends[key]
        ends_ns = [row["start"].value + row["duration_ns"] for row in (sent, received)]
        assert ends_ns[1] - ends_ns[0] > -1000
        assert sent["blocked_ns"] == 0


def test_one_stage_sends_nothing():
    spans = emit(pp=1)["spans"]
    assert not transfers(spans, "send")
    assert set(spans["peer"].to_pylist()) == {-1}


def test_each_rank_has_one_row_of_steps_for_each_step_and_one_place():
    tables = emit()
    assert tables["steps"].num_rows == 8 * 6
    places = list(zip(*(column(tables["topology"], c) for c in ("pp", "dp", "tp")), strict=True))
    assert len(set(places)) == 8


def test_a_straggler_computes_longer_and_its_tensor_peer_waits_for_it():
    slow = emit(faults=["straggler:rank=2,factor=2"])["spans"]
    assert mean_ns(slow, 2, "all_reduce", "forward") < mean_ns(slow, 3, "all_reduce", "forward") / 5


def test_a_slow_stage_slows_all_its_ranks_and_no_other():
    spans = emit(faults=["stage:stage=1,factor=1.5"])["spans"]
    forward = [mean_ns(spans, r, "forward") for r in range(8)]
    assert min(forward[4:]) > 1.3 * max(forward[:4])


def test_a_slow_link_slows_the_reduction_and_no_computation():
    clean, slow = emit()["spans"], emit(faults=["slow_link:rank=0,factor=5"])["spans"]
    assert mean_ns(slow, 0, "all_reduce") > 2 * mean_ns(clean, 0, "all_reduce")
    assert mean_ns(slow, 0, "forward") == mean_ns(clean, 0, "forward")


def test_a_hung_rank_is_open_in_its_backward_and_everyone_else_in_the_reduction():
    spans = emit(faults=["hang:rank=5,since=3"])["spans"]
    opened = spans.filter(spans["open"])
    by_rank = dict(
        zip(opened["rank"].to_pylist(), opened["phase"].cast(pa.string()).to_pylist(), strict=True)
    )
    assert by_rank == {r: "backward" if r == 5 else "all_reduce" for r in range(8)}
    assert max(opened["step"].to_pylist()) == max(spans["step"].to_pylist()) == 3


def test_a_silent_node_sends_nothing_while_it_is_silent():
    steps = emit(ranks=32, faults=["silent:node=sim-00001,since=2,until=3"])["steps"]
    missing = {(s, r) for s in range(6) for r in range(32)} - set(
        zip(steps["step"].to_pylist(), steps["rank"].to_pylist(), strict=True)
    )
    assert missing == {(s, r) for s in (2, 3) for r in range(8, 16)}


def test_a_nan_loss_is_nan_on_the_ranks_that_log_one_and_null_elsewhere():
    steps = emit(faults=["nan:since=4"])["steps"]
    loss = steps.filter(pc.equal(steps["step"], 5))["loss"]
    assert loss.null_count == 4
    assert pc.all(pc.is_nan(loss.drop_null())).as_py()


def test_it_says_that_it_is_simulated():
    event = emit(faults=["drift:rank=1,per_step=0.01"])["events"].to_pylist()[0]
    assert event["kind"] == "simulated"
    assert "drift" in event["detail"]
