"""What every route shares: the token, one-line errors, JSON bodies."""

import asyncio

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import guard
from pulsetrain.hub.routes.guard import guarded, json_body
from tests.hub.fakes import TOKEN, Client


async def endpoint(request):
    return JSONResponse(await json_body(request, "actor"))


CLIENT = Client([Route("/", guarded(endpoint, TOKEN), methods=["POST"])])


class Request:
    """A request with a body of any bytes."""

    def __init__(self, *parts):
        self.parts = parts

    async def stream(self):
        for part in self.parts:
            yield part


def test_a_body_with_its_required_keys_arrives():
    assert CLIENT.post("/", json={"actor": "ann", "x": 1}).json() == {"actor": "ann", "x": 1}


@pytest.mark.parametrize("body", [{}, {"actor": ""}, {"actor": " \n"}, ["actor"], "actor"])
def test_a_body_that_lacks_a_key_is_one_line(body):
    answer = CLIENT.post("/", json=body)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no", "body is not JSON: Expecting value"),
        (b"\xff", "body is not JSON: "),
        (b"[" * 100_000, "body is not JSON: maximum recursion"),
        (b'{"actor": NaN}', "body is not JSON: NaN is no JSON"),
        (b'{"actor": "\\ud800"}', "body is not JSON: .*surrogates"),
        (b" " * (guard.MAX_BODY_BYTES + 1), "body is larger than 1048576 bytes"),
    ],
)
def test_a_body_that_is_no_json_is_a_usage_error(body, words):
    with pytest.raises(UsageError, match=words):
        asyncio.run(json_body(Request(body)))


@pytest.mark.parametrize("value", [5, ["a"], {}, True, "x" * 5000])
def test_a_text_is_a_text(value):
    with pytest.raises(UsageError, match="allowed: a text of at most 4096 characters"):
        guard.text({"actor": value}, "actor")
    assert guard.text({"note": None}, "note") == ""


@pytest.mark.parametrize("value", ["x", float("inf"), [], 10**400])
def test_a_number_is_a_number(value):
    with pytest.raises(UsageError, match="not a number"):
        guard.number({"seconds": value}, "seconds", 1.0)
    assert guard.number({"seconds": ""}, "seconds", 1.0) == 1.0


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_done(token):
    assert CLIENT.post("/", json={"actor": "ann"}, token=token).status_code == 401
