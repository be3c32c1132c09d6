"""Log lines on their way to the spool: rules by name, few events, the first error of each rank."""

import json

from pulsetrain.agent.log_lines import LogLineSink
from pulsetrain.records.columns import Columns
from pulsetrain.records.site_rules import SiteRule
from tests.records.rows import columns

RULES = (
    SiteRule(name="ib", pattern="ibv_.*fail", kind="rdma_error", severity="critical"),
    SiteRule(name="noise", pattern="warn", action="mark"),
)


class Spool:
    """A fake sink that keeps batches."""

    def __init__(self):
        self.batches = []
        self.size_bytes, self.dropped_rows, self.dropped = 1, 2, {"full": 2}

    def append(self, batch):
        self.batches.append(batch)
        return True

    def rows(self, record):
        return [row for batch in self.batches if batch.record == record for row in batch.to_rows()]


def lines(*messages, rank=3, ts=0, source="stderr", severity="info"):
    values = {
        "ts": ts, "node": "a", "job": "j", "attempt": 1, "rank": rank, "source": source, "rule": "",
        "severity": severity, "message": list(messages),
    }  # fmt: skip
    return Columns.from_values("logs", len(messages), values)


def sink(rules=RULES):
    spool = Spool()
    return LogLineSink(spool, rules, nproc_per_node=2), spool


def details(spool, kind):
    return [json.loads(row["detail"]) for row in spool.rows("events") if row["kind"] == kind]


def test_each_line_gets_the_name_of_its_rule():
    filled, spool = sink()
    filled.append(lines("ibv_post failed", "warn: x", "step 1"))
    assert [row["rule"] for row in spool.rows("logs")] == ["ib", "noise", ""]
    assert [row["message"] for row in spool.rows("logs")] == ["ibv_post failed", "warn: x", "step 1"]


def test_a_rule_that_informs_is_an_event_and_one_that_marks_is_none():
    filled, spool = sink()
    filled.append(lines("ibv_post failed", "warn: x"))
    (event,) = spool.rows("events")
    assert (event["job"], event["attempt"], event["rank"], event["kind"]) == ("j", 1, 3, "log_rule")
    detail = json.loads(event["detail"])
    assert (detail["rule"], detail["kind"], detail["severity"]) == ("ib", "rdma_error", "critical")


def test_a_storm_of_lines_is_few_events_that_count_them():
    filled, spool = sink()
    for second in range(25):
        filled.append(lines(*["ibv_x failed"] * 100, ts=second * 10**9))
    told = details(spool, "log_rule")
    assert len(told) == 3
    assert [d["lines"] for d in told] == [1, 1000, 1000]


def test_kernel_lines_are_tried_too():
    filled, spool = sink()
    filled.append(lines("mlx5: ibv_cmd failed", rank=-1, source="kmsg"))
    assert spool.rows("logs")[0]["rule"] == "ib"
    assert details(spool, "first_error") == []


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    step()",
    "RuntimeError: uncorrectable NVLink error",
)


def test_the_first_error_of_a_rank_has_its_call_stack_also_across_batches():
    filled, spool = sink(())
    filled.append(lines(*TRACEBACK[:2], ts=2_000_000_000, severity="error"))
    filled.append(lines(*TRACEBACK[2:], ts=3_000_000_000, severity="error"))
    (error,) = details(spool, "first_error")
    assert error["message"]["message"] == "RuntimeError: uncorrectable NVLink error"
    assert error["message"]["extraInfo"] == {"py_callstack": "\n".join(TRACEBACK), "timestamp": "2"}
    assert error["local_rank"] == 1


def test_a_line_that_is_only_an_error_does_not_hide_the_traceback_after_it():
    filled, spool = sink(())
    filled.append(lines("ERROR: retrying", "ERROR: again", severity="error"))
    filled.append(lines(*TRACEBACK, severity="error"))
    assert [d["message"]["message"] for d in details(spool, "first_error")] == [
        "ERROR: retrying",
        "RuntimeError: uncorrectable NVLink error",
    ]


def told(*batches):
    """Messages and stacks of the errors in these lines, a batch for each second."""
    filled, spool = sink(())
    for second, batch in enumerate(batches):
        filled.append(lines(*batch, ts=second * 10**9, severity="error"))
    messages = [detail["message"] for detail in details(spool, "first_error")]
    return [(m["message"], m["extraInfo"]["py_callstack"]) for m in messages]


def test_a_traceback_after_a_progress_bar_on_its_line_is_one():
    bar = "  5%|5         | 10/200 [00:01<00:22,  8.5it/s]"
    assert told((bar + TRACEBACK[0], *TRACEBACK[1:])) == [(TRACEBACK[-1], "\n".join(TRACEBACK))]


def test_a_traceback_whose_lines_all_have_the_same_prefix_is_told_without_it():
    assert told([f"node7: {line}" for line in TRACEBACK]) == [(TRACEBACK[-1], "\n".join(TRACEBACK))]


def test_a_traceback_within_a_line_of_json_begins_none():
    line = '{"level": "error", "exception": "Traceback (most recent call last):\\n File x"}'
    assert told((line, "step 4")) == [(line, "")]


def test_of_a_chain_of_exceptions_the_origin_is_told():
    link = "During handling of the above exception, another exception occurred:"
    chain = (*TRACEBACK, link, *TRACEBACK[:3], "ValueError: training failed")
    assert [message for message, _ in told(chain)] == [TRACEBACK[-1]]


def test_a_traceback_that_ends_nothing_is_not_told():
    """Python prints such ones while objects are thrown away, often after the one that counts."""
    ignored = "Exception ignored in: <function _Iterator.__del__ at 0x7f>"
    noise = (ignored, *TRACEBACK[:3], "AssertionError: can only test a child process")
    with_stack = [message for message, stack in told(TRACEBACK, noise) if stack]
    assert with_stack == [TRACEBACK[-1]]


def test_later_tracebacks_are_told_too_but_not_a_storm_of_them():
    many = [(*TRACEBACK[:3], f"OSError: {i}") for i in range(100)]
    late = [()] * 600
    found = [message for message, _ in told(*many, *late, (*TRACEBACK[:3], "KeyError: 'x'"))]
    assert found == [*(f"OSError: {i}" for i in range(8)), "KeyError: 'x'"]


def test_what_the_profiler_logs_without_a_gpu_is_no_error_of_the_rank():
    filled, spool = sink(())
    logged = (
        "ERROR:2026-11-29 08:21:00 25909:25909 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code 35"
    )
    filled.append(lines(logged, "ERROR: disk is full", severity="error"))
    (error,) = details(spool, "first_error")
    assert error["message"]["message"] == "ERROR: disk is full"


def test_ranks_are_told_apart_and_healthy_ranks_have_no_error():
    filled, spool = sink(())
    filled.append(lines(*TRACEBACK, rank=0, severity="error"))
    filled.append(lines("step 1", "step 2", rank=1))
    assert [row["rank"] for row in spool.rows("events")] == [0]


def test_other_records_and_the_sinks_own_counts_pass_through():
    filled, spool = sink()
    batch = columns("metrics", 2)
    assert filled.append(batch)
    assert spool.batches == [batch]
    assert (filled.size_bytes, filled.dropped_rows, filled.dropped) == (1, 2, {"full": 2})


def test_a_matcher_that_fails_costs_no_line(monkeypatch):
    filled, spool = sink()
    monkeypatch.setattr(filled, "_matcher", object())
    filled.append(lines("ibv_x failed"))
    assert len(spool.rows("logs")) == 1


def test_skipped_lines_are_a_gauge_where_there_are_rules():
    assert sink()[0].gauges == {"log_rules_skipped_lines": 0}
    assert sink(())[0].gauges == {}
