"""One line for each job, and the evidence behind it."""

from pulsetrain.dashboard.models.overview import evidence, job_lines, live_facts, mfu_ratio, stale

STORED = {"job": "old", "attempts": 2, "last_step": 99, "last_ns": 1_700_000_000_000_000_000}


def live(state="healthy", job="gpt"):
    return {"job": job, "attempt": 1, "step": 7, "verdict": {"state": state, "sentence": "S.", "since_ns": 5}}


def test_a_job_the_hub_runs_says_what_the_hub_says():
    (line,) = job_lines([live("slow")], [])
    assert (line.state, line.sentence, line.since_ns, line.step) == ("slow", "S.", 5, 7)


def test_a_job_only_on_record_has_no_data():
    lines = job_lines([live()], [STORED, {**STORED, "job": "gpt"}])
    assert [line.job for line in lines] == ["gpt", "old"]
    assert lines[1].state == "no_data"
    assert "2023-11-14 22:13:20" in lines[1].sentence


def test_an_old_answer_expires():
    lines = job_lines([live("healthy")], [])
    assert stale(lines, 9.0) == lines
    (line,) = stale(lines, 11.0)
    assert line.state == "no_data"
    assert line.sentence == "No data for 11 s. The hub last said: S."


def test_evidence_links_to_what_proves_it():
    row = {
        "kind": "hang", "subject_type": "rank", "subject": "5", "summary": "s", "confidence": 0.9, "ts_ns": 1,
        "times": 2, "severity": "critical",
    }  # fmt: skip
    (rank,) = evidence([row], job="a b")
    assert rank.href == "rank?job=a+b&rank=5"
    (node,) = evidence([{**row, "subject_type": "node", "subject": "n&1"}], job="j")
    assert node.href == "node?job=j&node=n%261"
    (group,) = evidence([{**row, "subject_type": "group", "subject": "tp"}], job="j")
    assert group.href.startswith("topology?")


def test_the_mfu_is_shown_where_the_hub_knows_the_device():
    job = {"step": 3, "detectors": [{"analyzer": "mfu", "state": "healthy", "numbers": {"mfu": 0.414}}]}
    assert live_facts(job)["MFU"] == "41.4%"
    assert "MFU" not in live_facts({"step": 3, "detectors": [{"analyzer": "mfu", "numbers": {}}]})
    decay = {"kind": "mfu_decay", "evidence": '{"mfu": 0.3}'}
    assert mfu_ratio({"detectors": [], "findings": [{"kind": "hang", "evidence": "no json"}, decay]}) == 0.3
    assert mfu_ratio({"findings": [{"kind": "mfu_decay", "evidence": "no json"}]}) is None
