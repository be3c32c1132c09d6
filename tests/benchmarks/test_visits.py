"""Which pages the benchmark of the dashboard opens, and what it reads of a fleet."""

from __future__ import annotations

import json
import re

from browsing.live_site import Feed
from browsing.visits import visits
from browsing.walks import STARTS

from tests.repository import ROOT

APP = (ROOT / "pulsetrain/dashboard/app.py").read_text()
PAGES = set(re.findall(r'"(\w+)": st\.Page', APP)) - {"alias"}


def test_every_page_is_measured_and_a_walk_may_begin_at_it():
    assert len(PAGES) > 15
    assert {visit.name for visit in visits(371, "sim-01000", 1536)} == PAGES
    assert {re.split(r"\?", start)[0] or "overview" for start in STARTS} == PAGES


def test_a_change_of_view_has_an_end_and_a_page_without_one_has_none():
    found = visits(371, "sim-01000", 1536)
    assert [visit.name for visit in found if bool(visit.change) != bool(visit.changed)] == []
    assert len([visit for visit in found if visit.change]) > 10


def test_heartbeats_count_from_the_moment_at_which_the_job_runs(tmp_path):
    log = tmp_path / "fleet.log"
    reports = [
        {"at_s": -1.0, "late_s": 9.0, "held_back": 7},
        {"at_s": 3.0, "late_s": 0.25, "held_back": 0},
        {"at_s": 8.0, "late_s": 0.125, "held_back": 2},
    ]
    said = [json.dumps(report) for report in reports]
    log.write_text("\n".join(["a line of a logger", *said, json.dumps({"ranks": 8, "held_back": 9})]))
    assert Feed(log=log).heartbeats() == {"late_s": 0.25, "held_back": 2}


def test_a_fleet_that_has_said_nothing_yet_was_never_late(tmp_path):
    log = tmp_path / "fleet.log"
    log.touch()
    assert Feed(log=log).heartbeats() == {"late_s": 0.0, "held_back": 0}
