"""What each detector sees."""

from pulsetrain.dashboard.models.detectors import detectors


def test_the_worst_of_a_detector_counts_and_blind_comes_before_healthy():
    verdicts = [
        {"analyzer": "mfu", "state": "healthy"},
        {"analyzer": "network", "state": "blind", "reason": "no port"},
        {"analyzer": "hang", "state": "healthy"},
        {"analyzer": "hang", "state": "finding", "summary": "rank 3"},
    ]
    assert [(d["name"], d["state"], d["reason"]) for d in detectors(verdicts)] == [
        ("network", "blind", "no port"),
        ("hang", "finding", "rank 3"),
        ("mfu", "healthy", ""),
    ]
    assert detectors([]) == []
