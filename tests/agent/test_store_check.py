"""Whether a node reaches the store of its attempt."""

import socket

import pytest

from pulsetrain.agent.store_check import why_unreachable


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_a_store_that_listens_is_reached(listener):
    assert why_unreachable("127.0.0.1", listener.getsockname()[1]) == ""


def test_one_that_does_not_is_named_with_the_reason(listener):
    port = listener.getsockname()[1]
    listener.close()
    why = why_unreachable("127.0.0.1", port)
    assert why.startswith(f"127.0.0.1:{port}: ")
    assert "refused" in why
