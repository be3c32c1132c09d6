import pytest

from pulsetrain.hub.kubernetes.errors import Throttled, error_of


@pytest.mark.parametrize(
    ("status", "headers", "wait_s"),
    [
        ({}, {"retry-after": "7"}, 7.0),
        ({"details": {"retryAfterSeconds": 3}}, {}, 3.0),
        ({"details": None}, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"details": {"retryAfterSeconds": [1]}}, {}, 0.0),
        ({}, {"retry-after": "-5"}, 0.0),
    ],
)
def test_how_long_a_throttled_request_is_to_wait(status, headers, wait_s):
    error = error_of(429, status, headers, "GET v1/nodes")
    assert isinstance(error, Throttled)
    assert error.retry_after_s == wait_s


def test_without_a_word_the_status_is_told():
    assert str(error_of(418, {}, {}, "GET v1/nodes")) == "GET v1/nodes: status 418"
