"""A screen that stays open follows the lead from hub to hub."""

import contextlib

import pytest

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.leading_client import LeadingClient
from tests.protocol.fake_hub import fake_hub

LEADS, WAITS = {"hub": {"role": "leader"}}, {"hub": {"role": "waiting"}}


@pytest.fixture
def pair():
    """Two hubs, of which the first leads, and a client of both."""
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(fake_hub((200, LEADS))) for _ in range(2))
        address = HubAddress(url=first.url, token="t", others=(second.url,))
        yield first, second, LeadingClient(address, timeout_s=5.0)


@pytest.mark.parametrize("question", ["status", "alerts", "incidents"])
@pytest.mark.parametrize("code", [503, 500])
def test_another_hub_is_asked_once_it_leads_and_stays_so(pair, question, code):
    first, second, client = pair
    first.answers = [(code, {"error": "this hub is deposed"})]
    second.answers = [(200, LEADS | {"alerts": [], "incidents": []})]
    for _ in range(2):
        getattr(client, question)()
    asked = [(a.path, a.headers["Authorization"].strip()) for a in second.asked]
    assert asked == [("/v1/leader", "Bearer"), *[(f"/v1/{question}", "Bearer t")] * 2]


def test_a_hub_that_waits_by_now_is_left_and_one_that_nobody_replaces_is_not(pair):
    first, second, client = pair
    first.answers, second.answers = [(200, WAITS), (503, WAITS)], [(503, WAITS)]
    assert client.status() == WAITS
    first.answers, second.answers = [(200, WAITS), (503, WAITS)], [(200, LEADS)]
    assert client.status() == LEADS


def test_a_hub_that_is_away_is_left_and_where_none_leads_the_error_is_its_own():
    away = "http://127.0.0.1:9"
    with fake_hub((503, WAITS)) as second:
        client = LeadingClient(HubAddress(url=away, token="t", others=(second.url,)))
        with pytest.raises(Unavailable, match=away):
            client.status()
        second.answers = [(200, LEADS)]
        assert client.status() == LEADS


def test_a_refused_token_and_one_hub_alone_move_nothing(pair):
    first, second, client = pair
    first.answers = [(401, {"error": "token"})]
    with pytest.raises(AuthError):
        client.status()
    assert not second.asked
    alone = LeadingClient(HubAddress(url=first.url, token="t"))
    first.answers = [(503, WAITS)]
    with pytest.raises(PulsetrainError):
        alone.status()
