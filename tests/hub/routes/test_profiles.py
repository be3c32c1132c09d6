"""Profiles over HTTP."""

import pytest

from pulsetrain.hub.routes import profiles
from tests.hub.fakes import TOKEN, Client

PATH = "/v1/jobs/j/profile"
BODY = {"ranks": [0, 3], "steps": 2, "actor": "ann"}


class Profiles:
    """Keeps what is asked for."""

    def __init__(self):
        self.asked = []

    async def take(self, job, **asked):
        self.asked.append((job, asked))
        return {"job": job}


@pytest.fixture
def site():
    class Site:
        profiles = Profiles()
        client = Client(profiles_routes(profiles))

    return Site


def profiles_routes(fake):
    return profiles.routes(fake, TOKEN)


def test_a_profile_is_asked_for_in_the_persons_name(site):
    assert site.client.post(PATH, json=BODY).json() == {"job": "j"}
    assert site.profiles.asked == [("j", {"ranks": [0, 3], "steps": 2, "actor": "ann"})]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": "0-3"}, "a list of numbers"),
        ({"ranks": [0, True]}, "a list of numbers"),
        ({"steps": "3"}, "not a whole number"),
        ({"actor": ""}, "actor"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(site, change, words):
    reply = site.client.post(PATH, json=BODY | change)
    assert reply.status_code == 400
    assert words in reply.json()["error"]
    assert site.profiles.asked == []
