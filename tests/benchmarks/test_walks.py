"""The file in which random walks are kept."""

from __future__ import annotations

from browsing.walks import Walk, WalkLog


def test_a_walk_that_is_in_the_file_is_not_made_again(tmp_path):
    path = tmp_path / "walks.jsonl"
    log = WalkLog(path)
    log.add(Walk(seed=3, clicks=2, done=["page: Nodes", "browser: back"]))
    log.add(Walk(seed=5, clicks=1, problems=["after page: Logs: it is white"]))
    again = WalkLog(path)
    assert again.missing(range(3, 7)) == [4, 6]
    assert again.walks == log.walks


def test_the_report_counts_what_is_in_the_file_and_names_each_problem(tmp_path):
    path = tmp_path / "walks.jsonl"
    WalkLog(path).add(Walk(seed=3, clicks=2))
    log = WalkLog(path)
    log.add(Walk(seed=5, clicks=1, problems=["it is white", "its style is lost"]))
    assert log.report() == {
        "walks": 2, "clicks": 3, "problems": ["walk 5: it is white", "walk 5: its style is lost"],
    }  # fmt: skip


def test_without_a_file_walks_are_reported_and_not_kept():
    log = WalkLog(None)
    assert log.missing(range(2)) == [0, 1]
    log.add(Walk(seed=1, clicks=4))
    assert log.missing(range(2)) == [0]
    assert log.report()["walks"] == 1
