"""A request is let in by one token, sent in any of the ways of ClickHouse's clients."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from starlette.requests import Request

from pulsetrain.protocol.access import given_token, is_authorized, peer_key


@dataclass
class FakeRequest:
    headers: dict[str, str] = field(default_factory=dict)
    query_params: dict[str, str] = field(default_factory=dict)


def basic(text):
    return FakeRequest({"authorization": f"Basic {base64.b64encode(text).decode()}"})


@pytest.mark.parametrize(
    "request_",
    [
        FakeRequest({"authorization": "Bearer secret"}),
        FakeRequest({"authorization": "bearer  secret "}),
        basic(b"default:secret"),
        FakeRequest({"x-clickhouse-key": "secret"}),
        FakeRequest({}, {"password": "secret"}),
        FakeRequest({"authorization": "Digest abc", "x-clickhouse-key": "secret"}),
    ],
)
def test_the_token_is_read_in_each_of_the_ways(request_):
    assert given_token(request_) == "secret"
    assert is_authorized(request_, "secret")
    assert not is_authorized(request_, "secrets")


@pytest.mark.parametrize(
    "request_",
    [
        FakeRequest(),
        FakeRequest({"authorization": "Basic not-base64!"}),
        basic(b"\xff\xfe"),
        basic(b"no colon"),
        FakeRequest({"authorization": "Bearer"}),
    ],
)
def test_a_request_without_a_token_that_can_be_read_is_not_let_in(request_):
    assert given_token(request_) == ""
    assert not is_authorized(request_, "secret")


def test_an_empty_token_lets_nobody_in():
    assert not is_authorized(FakeRequest({"authorization": "Bearer "}), "")


def test_a_token_may_hold_any_character():
    assert is_authorized(FakeRequest({"authorization": "Bearer schlüssel"}), "schlüssel")


def test_a_request_of_the_web_framework_is_one():
    scope = {"type": "http", "query_string": b"password=secret", "headers": [(b"X-Other", b"1")]}
    assert is_authorized(Request(scope), "secret")
    scope = {"type": "http", "query_string": b"", "headers": [(b"authorization", b"Bearer secret")]}
    assert is_authorized(Request(scope), "secret")


@pytest.mark.integration
def test_agents_import_the_protocol_without_a_web_framework():
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "import pulsetrain.protocol.access, pulsetrain.protocol.messages, pulsetrain.protocol.client"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_key_of_a_job_is_the_same_at_the_next_hub_and_tells_nothing_of_the_token():
    assert peer_key("token", "gpt") == peer_key("token", "gpt")
    assert len({peer_key("token", "gpt"), peer_key("token", "bert"), peer_key("other", "gpt")}) == 3
    assert "token" not in peer_key("token", "gpt")
