"""A timeline in words and as a table."""

from __future__ import annotations

from pulsetrain.analytics.slowness.clocks import Clock
from pulsetrain.dashboard.models.attribution import Attribution
from pulsetrain.dashboard.models.timeline.node_clocks import NodeClocks
from pulsetrain.dashboard.models.timeline.words import rank_lines, summary
from tests.dashboard.models.timeline.rows import MS, collective, drawing, row, transfer

HELD = Attribution(ranks={2: "culprit"})


def clocks(**errors_ns):
    known = {n: Clock(at_ns=0.0, offset_ns=0.0, drift=0.0, error_ns=float(e)) for n, e in errors_ns.items()}
    return NodeClocks(clocks=known)


def test_ranks_steps_and_spans_are_counted():
    assert summary(drawing(row(step=3), row(5, rank=1, step=4))) == "2 ranks, steps 3 to 4, 2 spans."
    assert summary(drawing(row())) == "1 rank, steps 3 to 3, 1 span."


def test_what_is_open_is_named_with_the_culprit_first():
    rows = [collective(k, (9 - k) * MS, rank=k, open=True) for k in range(5)]
    words = summary(drawing(*rows, blame=HELD))
    assert "Not ended: rank 2 is in all_reduce for at least 7.00 ms; rank 0 is in all_reduce" in words
    assert words.endswith("and 2 more.")


def test_what_an_attempt_that_is_over_left_open_is_not_said():
    assert "Not ended" not in summary(drawing(row(open=True), row(50, attempt=2)))


def test_bubbles_are_told_with_the_rank_that_has_most():
    rows = []
    for rank, gap in ((0, 10), (1, 30)):
        rows += [row(0, 5 * MS, rank, microbatch=0), row((5 + gap) * MS, 5 * MS, rank, microbatch=1)]
        rows.append(transfer("recv", rank, 1 - rank, 5 * MS, gap * MS))
    words = summary(drawing(*rows))
    assert "Pipeline bubbles take 20.0 ms of a rank on average, most of rank 1 with 30.0 ms." in words


def test_how_well_clocks_agree_is_said():
    rows = (row(), row(rank=1, node="n1"))
    assert "to ± 6.00 µs." in summary(drawing(*rows, clocks=clocks(n0=0, n1=6000)))
    assert "Not that of n1." in summary(drawing(*rows, clocks=clocks(n0=0)))
    assert "each node's own clock" in summary(drawing(*rows))


def test_a_line_of_the_table_tells_work_from_standing_still():
    rows = (
        row(0, 50 * MS, blocked_ns=20 * MS),
        collective(10 * MS, 20 * MS, parent="forward", blocked_ns=20 * MS),
        collective(60 * MS, 9 * MS, seq=2, blocked_ns=9 * MS),
        row(80 * MS, 7 * MS, open=True, phase="optimizer"),
    )
    (line,) = rank_lines(drawing(*rows, blame=Attribution(nodes={"n0": "slow"})))
    assert (line.own_ns, line.blocked_ns, line.spans, line.state) == (30 * MS, 29 * MS, 4, "slow")
    assert (line.longest, line.open) == ("forward 50.0 ms, step 3", "optimizer 7.00 ms, step 3")


def test_standing_still_that_was_not_measured_is_unknown():
    (line,) = rank_lines(drawing(row()))
    assert (line.own_ns, line.blocked_ns) == (-1, -1)
