"""The status over HTTP."""

from pulsetrain.hub.routes import status
from tests.hub.fakes import TOKEN, Client


def test_the_status_asks_for_the_token():
    client = Client(status.routes(lambda: {"hub": {}, "jobs": [], "loops": []}, TOKEN))
    assert client.get("/v1/status").json() == {"hub": {}, "jobs": [], "loops": []}
    assert client.get("/v1/status", token="no").status_code == 401
