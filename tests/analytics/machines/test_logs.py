"""Whose log differs from its peers'."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.analytics.machines.logs import find
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings

S = 1_000_000_000


def table(lines):
    """Rows of `logs` from (rank, node, severity, message)."""
    return pa.table(
        {
            "ts": pa.array([i * S for i in range(len(lines))], pa.timestamp("ns", "UTC")),
            "node": [line[1] for line in lines],
            "rank": [line[0] for line in lines],
            "severity": [line[2] for line in lines],
            "message": [line[3] for line in lines],
        }
    )


def job(ranks=8, steps=20):
    """What a sound job prints: every rank its steps, the first one also the loss and a warning."""
    lines = []
    for step in range(steps):
        lines += [
            (r, f"n{r // 2}", "info", f"rank {r} finished step {step} in 0.{step}1 s") for r in range(ranks)
        ]
        lines.append((0, "n0", "info", f"step {step} loss {3 - step / 10}"))
    return [
        *lines,
        *((r, f"n{r // 2}", "warning", "UserWarning: lr_scheduler before optimizer") for r in range(ranks)),
    ]


def reported(lines, **more):
    return [(f.subject_type, f.subject, f.severity) for f in findings(find(table(lines), now_ns=0, **more))]


def test_a_sound_job_has_no_finding_although_one_rank_prints_for_all():
    (verdict,) = find(table(job()), now_ns=0)
    assert isinstance(verdict, Healthy)


def test_a_warning_that_one_rank_prints_for_all_is_no_difference_in_a_large_job_either():
    assert reported([*job(ranks=128, steps=4), (0, "n0", "warning", "FutureWarning: this API will go")]) == []


def test_the_rank_that_complains_alone_is_named_with_its_lines():
    lines = [*job(), (5, "n2", "error", "CUDA error: uncorrectable ECC error encountered on device 3")]
    (verdict,) = findings(find(table(lines), now_ns=0, job="j"))
    assert (verdict.subject, verdict.severity, verdict.evidence["node"]) == ("5", "warning", "n2")
    assert verdict.evidence["blame"]["shares"]["infrastructure"] > 0.9
    assert "ECC" in verdict.summary


def test_what_everybody_complains_about_is_no_difference():
    lines = [*job(), *((r, "n", "error", f"rank {r}: collective timed out after {r}s") for r in range(8))]
    assert reported(lines) == []


def test_a_rank_that_fell_silent_is_named():
    lines = [line for line in job() if not (line[0] == 6 and "finished step" in line[3])]
    lines.append((6, "n3", "info", "started"))
    assert reported(lines) == [("rank", "6", "info")]


def test_nodes_are_compared_where_lines_have_no_rank():
    lines = [(-1, f"n{i}", "info", "agent ok") for i in range(6) for _ in range(5)]
    lines.append((-1, "n4", "critical", "disk nvme0 is gone, giving up"))
    assert reported(lines) == [("node", "n4", "warning")]


def test_too_few_logs_cannot_be_compared():
    (blind,) = find(table(job(ranks=1)), now_ns=0)
    assert isinstance(blind, Inconclusive)
    (empty,) = find(table([(0, "", "info", "x")]).slice(0, 0), now_ns=0)
    assert isinstance(empty, Inconclusive)
    assert empty.blind


def test_renaming_ranks_renames_the_answer_and_worse_is_never_milder():
    def confidence(rank, times):
        lines = [
            *job(),
            *((rank, "n", "error", f"Input/output error while reading shard {i}") for i in range(times)),
        ]
        (verdict,) = findings(find(table(lines), now_ns=0))
        assert verdict.subject == str(rank)
        return verdict.confidence

    assert confidence(2, 1) == confidence(7, 1)
    assert confidence(2, 1) <= confidence(2, 5) <= confidence(2, 50)


def test_ten_thousand_lines_are_read_in_a_moment():
    lines = job(ranks=64, steps=150)
    assert reported(lines) == []
