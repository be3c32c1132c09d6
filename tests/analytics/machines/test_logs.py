"""Logs: who is to blame as a distribution, and whose log differs from its peers'."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.analytics.machines.log_files import read_folder
from pulsetrain.analytics.machines.log_rules import CLASSES, classify, rules
from pulsetrain.analytics.machines.log_templates import Templates, mask
from pulsetrain.analytics.machines.logs import find
from pulsetrain.analytics.verdict import Healthy, Inconclusive, findings
from pulsetrain.core.errors import UsageError

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


def said(lines, **more):
    return [(f.subject_type, f.subject, f.severity) for f in findings(find(table(lines), now_ns=0, **more))]


# -- blame -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.name)
def test_every_rule_decides_over_its_sample(rule):
    blame = classify([rule.sample])
    assert [name for name, _ in blame.reasons] == [rule.name]
    assert sum(blame.shares.values()) == pytest.approx(1)
    assert set(blame.shares) == set(CLASSES)
    assert rule.source


def test_a_symptom_is_not_its_cause():
    memory = classify(["RuntimeError: CUDA error: an illegal memory access was encountered"])
    assert 0.2 < memory.shares["infrastructure"] < 0.4
    assert memory.likeliest == "user"
    assert classify(["CUDA error: uncorrectable ECC error encountered"]).shares["infrastructure"] > 0.9
    assert classify(["KeyError: 'input_ids'"]).likeliest == "user"


def test_where_the_exception_was_raised_counts():
    line = "ValueError: bad"
    ours = classify(['  File "/home/me/train.py", line 7, in step', line])
    theirs = classify(['  File "/venv/lib/python3.11/site-packages/torch/nn/x.py", line 7, in forward', line])
    assert ours.shares["user"] > theirs.shares["user"]


def test_a_line_that_says_a_peer_died_points_elsewhere():
    blame = classify(
        ["RuntimeError: [../gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.2]:1234"]
    )
    assert blame.consequence
    both = classify(["Connection closed by peer", "KeyError: 'x'"])
    assert not both.consequence
    assert both.likeliest == "user"


def test_without_lines_the_signal_or_the_prior_speaks():
    assert classify([], -9).reasons == (("exit: killed", ""),)
    assert classify([], -7).likeliest == "infrastructure"
    assert classify([], 1).reasons == ()
    assert sum(classify([]).shares.values()) == pytest.approx(1)


@given(st.lists(st.text(max_size=80), max_size=10), st.integers(-64, 255))
@settings(max_examples=50, deadline=None)
def test_any_lines_give_a_distribution(lines, code):
    shares = classify(lines, code).shares
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares.values())


# -- templates ---------------------------------------------------------------------------------------------


def test_what_varies_is_masked_and_the_same_message_is_one_template():
    assert mask("2026-01-02 03:04:05,678 rank 3 at 10.0.0.1:29500 0xdeadbeef /data/x/y.bin 1e-3") == (
        "<time> rank <n> at <ip> <hex> <path> <n>"
    )
    templates = Templates()
    first = templates.add("worker alpha failed after 3 s")
    assert templates.add("worker alpha failed after 99 s") == first
    assert templates.add("something else entirely happened here") != first
    assert "failed" in templates.text(first)


# -- peers -------------------------------------------------------------------------------------------------


def test_a_sound_job_says_nothing_although_one_rank_prints_for_all():
    (verdict,) = find(table(job()), now_ns=0)
    assert isinstance(verdict, Healthy)


def test_a_warning_that_one_rank_prints_for_all_is_no_difference_in_a_large_job_either():
    assert said([*job(ranks=128, steps=4), (0, "n0", "warning", "FutureWarning: this API will go")]) == []


def test_the_rank_that_complains_alone_is_named_with_its_lines():
    lines = [*job(), (5, "n2", "error", "CUDA error: uncorrectable ECC error encountered on device 3")]
    (verdict,) = findings(find(table(lines), now_ns=0, job="j"))
    assert (verdict.subject, verdict.severity, verdict.evidence["node"]) == ("5", "warning", "n2")
    assert verdict.evidence["blame"]["shares"]["infrastructure"] > 0.9
    assert "ECC" in verdict.summary


def test_what_everybody_complains_about_is_no_difference():
    lines = [*job(), *((r, "n", "error", f"rank {r}: collective timed out after {r}s") for r in range(8))]
    assert said(lines) == []


def test_a_rank_that_fell_silent_is_named():
    lines = [line for line in job() if not (line[0] == 6 and "finished step" in line[3])]
    lines.append((6, "n3", "info", "started"))
    assert said(lines) == [("rank", "6", "info")]


def test_nodes_are_compared_where_lines_have_no_rank():
    lines = [(-1, f"n{i}", "info", "agent ok") for i in range(6) for _ in range(5)]
    lines.append((-1, "n4", "critical", "disk nvme0 is gone, giving up"))
    assert said(lines) == [("node", "n4", "warning")]


def test_too_few_logs_cannot_be_compared():
    (blind,) = find(table(job(ranks=1)), now_ns=0)
    assert isinstance(blind, Inconclusive)
    (empty,) = find(table([(0, "", "info", "x")]).slice(0, 0), now_ns=0)
    assert isinstance(empty, Inconclusive)
    assert empty.blind


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_changes_nothing(seed):
    lines = [
        *job(),
        (5, "n2", "error", "CUDA error: uncorrectable ECC error"),
        (5, "n2", "error", "giving up"),
    ]
    whole = table(lines)
    order = list(range(whole.num_rows))
    random.Random(seed).shuffle(order)
    assert find(whole.take(pa.array(order)), now_ns=0) == find(whole, now_ns=0)


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


def test_a_folder_of_logs_is_read(tmp_path):
    for rank in range(4):
        text = "".join(f"step {s} done\n" for s in range(9))
        (tmp_path / f"stderr_rank_{rank}.log").write_text(text + ("KeyError: 'x'\n" if rank == 2 else ""))
    answer = read_folder(tmp_path)
    assert [f["subject"] for f in answer["files"]] == ["0", "1", "2", "3"]
    assert answer["files"][2]["blame"]["reasons"] == ["user_exception"]
    assert [(f["subject_type"], f["subject"]) for f in answer["findings"]] == [("rank", "2")]
    with pytest.raises(UsageError, match="No such file"):
        read_folder(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no file"):
        read_folder(tmp_path / "empty")


def test_ten_thousand_lines_are_read_in_a_moment():
    lines = job(ranks=64, steps=150)
    assert said(lines) == []
