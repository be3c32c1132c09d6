"""The store as the analysis asks it."""

import pyarrow as pa

from pulsetrain.analytics.analyze import MACHINE_ANALYZERS
from pulsetrain.analytics.verdict import Inconclusive
from pulsetrain.hub.stored_records import StoreRecords


class Store:
    """Answers each query with the first table whose words are in it."""

    def __init__(self, **tables):
        self.tables = tables

    def query(self, sql, params=None):
        return next((t for words, t in self.tables.items() if words in sql), pa.table({}))


def test_a_store_without_steps_is_blind_and_does_not_raise():
    records = StoreRecords(Store())
    for machines in (True, False):
        (verdict,) = records.verdicts("j", 0, 0, machines=machines)
        assert isinstance(verdict, Inconclusive)
        assert verdict.blind
    assert records.newest_step("j", 0) == -1


def test_machines_and_steps_are_asked_apart():
    extent = pa.table({"attempt": [0], "first_step": [0], "last_step": [9]})
    records = StoreRecords(Store(first_step=extent))

    def names(*, machines):
        return {
            v.analyzer for v in records.verdicts("j", 0, 10**18, machines=machines) if hasattr(v, "analyzer")
        }

    assert names(machines=True) == set(MACHINE_ANALYZERS)
    assert "straggler" in names(machines=False)


def test_findings_of_earlier_hubs_are_findings_again():
    row = {
        "kind": "hang", "subject_type": "rank", "subject": "3", "attempt": 1, "times": 2, "first_ns": 5,
        "ts_ns": 9, "severity": "critical", "confidence": 0.9, "summary": "s",
        "evidence": '{"class": "rank"}',
    }  # fmt: skip
    (finding,) = StoreRecords(Store(findings=pa.Table.from_pylist([row]))).past_findings("j")
    assert (finding.job, finding.kind, finding.ts_ns) == ("j", "hang", 9)
    assert finding.evidence == {"class": "rank"}
