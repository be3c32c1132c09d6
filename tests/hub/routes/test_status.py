"""The status over HTTP."""

from pulsetrain.hub.routes import status
from pulsetrain.hub.routes.status import KeptStatus
from tests.hub.fakes import TOKEN, Client, Clock


def test_the_status_asks_for_the_token():
    answer = {"hub": {}, "jobs": [], "loops": []}
    client = Client(status.routes(lambda: answer, Clock(), TOKEN))
    assert client.get("/v1/status").json() == answer
    assert client.get("/v1/status").headers["content-type"] == "application/json"
    assert client.get("/v1/status", token="no").status_code == 401


def test_a_status_that_takes_long_is_given_out_again_and_a_quick_one_is_new_each_time():
    clock, made = Clock(), []

    def slow():
        clock.now_s += 0.1 * (len(made) == 0)
        made.append(1)
        return {"number": len(made)}

    kept = KeptStatus(slow, clock)
    assert [kept.text(), kept.text()] == [b'{"number":1}'] * 2
    clock.now_s += 0.89
    assert kept.text() == b'{"number":1}'
    clock.now_s += 0.02
    assert [kept.text(), kept.text()] == [b'{"number":2}', b'{"number":3}']
