"""What the Kafka client's own log says of a failure, in the words a user reads."""

import logging

import pytest
from kafka import errors

from pulsetrain.stream.errors import AuthError, Unavailable
from pulsetrain.stream.kafka import KafkaConfig, one_line_errors

CLIENT = logging.getLogger("kafka.net.manager")
LOGIN = KafkaConfig(
    servers="127.0.0.1:9092",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_username="alice",
    sasl_password="wrong",
)
HUNG_UP = errors.KafkaConnectionError("socket disconnected")
CUT_SHORT = errors.RequestTimedOutError("Request timed out after 79 ms")


def fails(heard, raised):
    """A client that logged `heard` while it tried, and gave up by `raised`."""
    with one_line_errors(LOGIN):
        for error in heard:
            CLIENT.error("Connection failed: %s", error)
        raise raised


def test_a_last_attempt_cut_short_does_not_hide_that_the_login_was_refused():
    with pytest.raises(AuthError, match="refuses user 'alice'"):
        fails([HUNG_UP] * 4 + [CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))


def test_a_broker_that_never_answered_is_not_said_to_refuse_the_login():
    with pytest.raises(Unavailable, match="does not answer"):
        fails([CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))


def test_a_refusal_is_said_whatever_came_after_it():
    refused = errors.SaslAuthenticationFailedError("no such user")
    with pytest.raises(AuthError, match="no such user"):
        fails([refused, HUNG_UP, CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))
