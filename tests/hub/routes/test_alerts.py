"""Alerts over HTTP."""

import pytest

from pulsetrain.analytics.incidents.alerts import AlertBook
from pulsetrain.hub.routes import alerts
from tests.hub.fakes import TOKEN, Client, Clock, finding


@pytest.fixture
def client(tmp_path):
    clock = Clock()
    book = AlertBook(tmp_path / "alerts.db")
    book.observe([finding()], clock.wall_ns())
    yield Client(alerts.routes(book, clock, TOKEN))
    book.close()


def test_acknowledging_is_in_the_history_of_the_alert(client):
    name = client.get("/v1/alerts").json()["alerts"][0]["id"]
    client.post(f"/v1/alerts/{name}/ack", json={"actor": "ann", "note": "cable"})
    history = client.get(f"/v1/alerts/{name}/history").json()["history"]
    assert [(h["state"], h["actor"], h["note"]) for h in history][-1] == ("acknowledged", "ann", "cable")


def test_acknowledging_an_unknown_alert_is_one_line(client):
    answer = client.post("/v1/alerts/nosuch/ack", json={"actor": "ann"})
    assert (answer.status_code, answer.json()["error"]) == (400, "no alert 'nosuch'")


def test_alerts_ask_for_the_token(client):
    for path in ("alerts", "alerts/x/history"):
        assert client.get(f"/v1/{path}", token="no").status_code == 401
