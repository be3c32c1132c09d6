"""Incidents over HTTP."""

from pulsetrain.hub.notifier import topology
from pulsetrain.hub.routes import incidents
from tests.hub.fakes import TOKEN, Client, Clock, finding
from tests.recovery.builders import job_snapshot

CLIENT = Client(
    incidents.routes(
        lambda: [finding(), finding("straggler", "5")], lambda: topology([job_snapshot()]), Clock(), TOKEN
    )
)


def test_findings_of_one_trouble_are_one_incident():
    (incident,) = CLIENT.get("/v1/incidents").json()["incidents"]
    assert (incident["root"], incident["state"]) == ("rank 3", "open")


def test_incidents_ask_for_the_token():
    assert CLIENT.get("/v1/incidents", token="no").status_code == 401
