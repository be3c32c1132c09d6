"""Muting alerts for a time, over HTTP."""

from types import SimpleNamespace

import pytest

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.hub.routes import alerts, silences
from pulsetrain.hub.routes.silences import LONGEST_SILENCE_S
from tests.hub.fakes import TOKEN, Client, Clock, finding


@pytest.fixture
def site(tmp_path):
    clock = Clock()
    book = AlertBook(tmp_path / "alerts.db")
    book.observe([finding()], clock.wall_ns())
    routes = [*alerts.routes(book, clock, TOKEN), *silences.routes(book, clock, TOKEN)]
    yield SimpleNamespace(client=Client(routes), clock=clock)
    book.close()


def alert(site):
    (only,) = site.client.get("/v1/alerts").json()["alerts"]
    return only


def test_a_silence_mutes_until_its_end_or_until_somebody_ends_it(site):
    body = {"actor": "ann", "matchers": {"kind": "hang"}, "seconds": 60, "comment": "known"}
    made = site.client.post("/v1/silences", json=body).json()
    assert "silenced by ann" in alert(site)["muted"]
    site.clock.now_s += 61
    assert alert(site)["muted"] == ""
    assert site.client.get("/v1/silences").json()["silences"] == []
    again = site.client.post("/v1/silences", json=body).json()
    assert again["id"] != made["id"]
    assert site.client.post(f"/v1/silences/{again['id']}/end", json={"actor": "bob"}).status_code == 200
    assert alert(site)["muted"] == ""


@pytest.mark.parametrize(("kind", "covers"), [("hang", 1), ("crash", 0)])
def test_a_silence_says_how_many_active_alerts_it_covers(site, kind, covers):
    made = site.client.post("/v1/silences", json={"actor": "ann", "matchers": {"kind": kind}, "seconds": 60})
    assert made.json()["covers"] == covers
    (listed,) = site.client.get("/v1/silences").json()["silences"]
    assert listed["covers"] == covers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": -1}, "seconds = -1"),
        ({"seconds": LONGEST_SILENCE_S + 1}, "at most"),
        ({"seconds": "soon"}, "'soon'"),
        ({"matchers": {"colour": "red"}}, "colour"),
        ({"matchers": ["kind"]}, "an object"),
        ({"actor": ""}, "actor"),
    ],
)
def test_a_silence_that_makes_no_sense_is_one_line(site, change, words):
    body = {"actor": "ann", "matchers": {"kind": "hang"}, "seconds": 60} | change
    answer = site.client.post("/v1/silences", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_ending_an_unknown_silence_is_one_line(site):
    answer = site.client.post("/v1/silences/nosuch/end", json={"actor": "ann"})
    assert (answer.status_code, answer.json()["error"]) == (400, "no silence 'nosuch'")


def test_silences_ask_for_the_token(site):
    assert site.client.get("/v1/silences", token="no").status_code == 401
