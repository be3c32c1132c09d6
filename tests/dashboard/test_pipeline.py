"""The page Pipeline."""


def test_detectors_agents_and_the_store_are_shown(draw, source):
    source.answers["status"]["jobs"][0]["detectors"] = [
        {"analyzer": "network", "state": "blind", "reason": "no <port>"}
    ]
    source.answers["nodes"] = [
        {"node": "node-1", "state": "active", "last_heartbeat_age_s": 2.0, "gauges": {"spool_bytes": 2048}},
        {"node": "node-2", "state": "active", "last_heartbeat_age_s": None},
    ]
    source.answers["status"]["loops"] = [
        {"process": "hub", "node": "", "loop": "watch", "age_s": 70.0, "stale": True, "failures": 1200,
         "failures_in_a_row": 2, "last_error": "<boom>"}
    ]  # fmt: skip
    source.stored["stored"] = [{"record": "spans", "rows": 48_000, "bytes": 1 << 20}]
    shown = draw("pipeline")
    assert [row[0::2] for row in shown.rows(0)] == [["network", "no <port>"]]
    assert shown.rows(1) == [["hub", "-", "watch", "1 min 10 s ago (late)", "1,200", "<boom>"]]
    assert shown.rows(2) == [["node-1", "2.0 s ago", "2.00 KiB"], ["node-2", "never", "-"]]
    assert shown.rows(3) == [["spans", "48,000", "1.00 MiB"]]


def test_without_agents_and_detectors_nothing_is_called_healthy(draw):
    text = draw("pipeline").text
    assert "No data: no detector has looked at this job yet." in text
    assert "No data: no agent has connected to this hub." in text
    assert "sees its data" not in text
