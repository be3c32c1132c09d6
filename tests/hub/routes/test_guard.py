"""What every route shares: the token, one-line errors, JSON bodies."""

import asyncio

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes.guard import guarded, json_body
from tests.hub.fakes import TOKEN, Client


async def endpoint(request):
    return JSONResponse(await json_body(request, "actor"))


CLIENT = Client([Route("/", guarded(endpoint, TOKEN), methods=["POST"])])


class Request:
    """A request with a body of any bytes."""

    def __init__(self, error):
        self.error = error

    async def json(self):
        raise self.error


def test_a_body_with_its_required_keys_arrives():
    assert CLIENT.post("/", json={"actor": "ann", "x": 1}).json() == {"actor": "ann", "x": 1}


@pytest.mark.parametrize("body", [{}, {"actor": ""}, ["actor"], "actor"])
def test_a_body_that_lacks_a_key_is_one_line(body):
    answer = CLIENT.post("/", json=body)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


def test_a_body_that_is_not_json_is_a_usage_error():
    with pytest.raises(UsageError, match="body is not JSON: no"):
        asyncio.run(json_body(Request(ValueError("no"))))


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_done(token):
    assert CLIENT.post("/", json={"actor": "ann"}, token=token).status_code == 401
