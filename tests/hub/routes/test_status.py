"""The status over HTTP."""

from pulsetrain.hub.routes import status
from tests.hub.fakes import TOKEN, Client, Clock


def test_the_status_asks_for_the_token():
    answer = {"hub": {}, "jobs": [], "loops": []}
    client = Client(status.routes(lambda: answer, Clock(), TOKEN))
    assert client.get("/v1/status").json() == answer
    assert client.get("/v1/status").headers["content-type"] == "application/json"
    assert client.get("/v1/status", token="no").status_code == 401
