"""Rounds over links over HTTP."""

import pytest

from pulsetrain.hub.routes import links
from tests.hub.fakes import TOKEN, Client

PATH = "/v1/jobs/j/links"


class Links:
    """Keeps what is asked for."""

    def __init__(self):
        self.asked = []

    async def measure(self, job, **asked):
        self.asked.append((job, asked))
        return {"job": job}


def test_links_are_measured_in_the_persons_name():
    fake = Links()
    client = Client(links.routes(fake, TOKEN))
    assert client.post(PATH, json={"actor": "ann", "limit_mbit": 50}).json() == {"job": "j"}
    assert fake.asked == [("j", {"actor": "ann", "limit_mbit": 50.0})]


@pytest.mark.parametrize(
    ("body", "words"), [({}, "actor"), ({"actor": "ann", "limit_mbit": "fast"}, "limit_mbit = 'fast'")]
)
def test_what_means_nothing_is_refused_in_one_line(body, words):
    fake = Links()
    reply = Client(links.routes(fake, TOKEN)).post(PATH, json=body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]
    assert fake.asked == []


def test_without_the_token_nothing_is_measured():
    fake = Links()
    assert Client(links.routes(fake, TOKEN)).post(PATH, json={"actor": "x"}, token="y").status_code == 401
    assert fake.asked == []
