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
    filled.append(lines(*TRACEBACK[:3], "ValueError: later", severity="error"))
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
