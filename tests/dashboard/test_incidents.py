"""The page Incidents."""

INCIDENT = {
    "id": "i1", "job": "gpt", "since_ns": 10**18, "severity": "critical", "state": "open", "root": "rank 5",
    "summary": "It <hangs>.", "suggested_action": "Look at it.", "victims": [f"rank {r}" for r in range(30)],
    "hypotheses": [{"root": "rank 5", "confidence": 0.9, "kinds": ["hang"], "because": ["first"]}],
    "timeline": [
        {"ts_ns": 10**18, "severity": "critical", "kind": "hang", "subject": "5", "summary": "It <hangs>."}
    ],
}  # fmt: skip


def test_an_incident_has_a_root_victims_hypotheses_and_what_to_do(draw, source):
    source.answers["incidents"] = [INCIDENT, {**INCIDENT, "job": "other"}]
    shown = draw("incidents")
    assert shown.html.count('class="incident"') == 1
    for words in ("rank 5 : It <hangs>.", "Look at it.", "rank 23 and 6 more"):
        assert words in " ".join(shown.text.split())
    assert shown.rows(0) == [["rank 5", "90%", "hang", "first"]]
    assert shown.rows(1)[0][2:] == ["hang", "5", "It <hangs>."]


def test_blind_and_broken_detectors_are_said_first(draw, source):
    source.answers["status"]["jobs"][0]["detectors"] = [
        {"analyzer": "hang", "state": "healthy"},
        {"analyzer": "network", "state": "blind", "reason": "no port"},
    ]
    text = draw("incidents").text
    assert "network: no port" in text
    assert "hang:" not in text
    assert "No incident is on record" in text


def test_incidents_of_the_chosen_time(draw, source):
    source.answers["incidents"] = [{**INCIDENT, "state": "closed"}]
    assert "It <hangs>." in draw("incidents", **{"from": "2001-09-09", "to": "2001-09-10"}).text
    for begin, end in (("2001-09-01", "2001-09-02"), ("2001-09-10", "2001-09-11")):
        assert "No incident of this job" in draw("incidents", **{"from": begin, "to": end}).text
    source.answers["incidents"] = [INCIDENT]
    assert "It <hangs>." in draw("incidents", **{"from": "2001-09-10"}).text
