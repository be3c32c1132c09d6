"""One rank of a job over HTTP."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import ranks
from tests.hub.fakes import TOKEN, Client


class Controller:
    """Knows job j with four ranks."""

    def rank(self, name, rank):
        if rank > 3:
            raise UsageError(f"rank = {rank}: allowed: 0 to 3")
        return {"job": name, "rank": rank}


@pytest.fixture
def client():
    return Client(ranks.routes(Controller(), TOKEN))


def test_one_rank_can_be_asked_for(client):
    assert client.get("/v1/jobs/j/ranks/3").json() == {"job": "j", "rank": 3}


@pytest.mark.parametrize("named", ["4", "-1", "x", "1.5", "99999999999", "%C2%B2"])
def test_what_is_no_rank_of_the_job_is_one_line(client, named):
    answer = client.get(f"/v1/jobs/j/ranks/{named}")
    assert answer.status_code == 400
    assert "rank = " in answer.json()["error"]


def test_it_asks_for_the_token(client):
    assert client.get("/v1/jobs/j/ranks/0", token="no").status_code == 401
