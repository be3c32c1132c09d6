from __future__ import annotations

import json

from pulsetrain.records.columns import Columns
from pulsetrain.records.findings import Finding, recorded

FINDING = Finding(
    ts_ns=10**18,
    job="j",
    attempt=2,
    kind="straggler",
    subject_type="rank",
    subject="7",
    severity="warning",
    confidence=0.9,
    summary="rank 7 is slow",
    evidence={"slowdown": 1.4, "steps": [1, 2]},
)


def stored(finding):
    """A row as the query of findings gives it."""
    row = finding.row()
    return {**row, "ts_ns": row["ts"]}


def test_a_finding_is_a_row_of_its_record():
    (row,) = Columns.from_rows("findings", [FINDING.row()]).to_rows()
    assert (row["ts"], row["subject"], row["confidence"]) == (10**18, "7", 0.9)
    assert json.loads(row["evidence"]) == {"slowdown": 1.4, "steps": [1, 2]}


def test_a_stored_finding_is_read_as_it_was_written():
    assert recorded("j", stored(FINDING)) == FINDING


def test_evidence_that_is_no_json_is_left_out():
    for text in ("", "{half"):
        assert recorded("j", {**stored(FINDING), "evidence": text}).evidence == {}
