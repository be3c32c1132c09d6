"""What a user reads of a failure of the Kafka client."""

import logging
import socket

import pytest
from kafka import errors
from kafka.net import KafkaTCPTransport, NetworkSelector

from pulsetrain.core.errors import AuthError, Unavailable
from pulsetrain.stream.kafka.transport import KafkaConfig, one_line_errors

CLIENT = logging.getLogger("kafka.net.manager")
LOGIN = KafkaConfig(
    servers="127.0.0.1:9092",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_username="alice",
    sasl_password="wrong",
)
REFUSED = errors.SaslAuthenticationFailedError("no such user")
HUNG_UP = errors.KafkaConnectionError("socket disconnected")
CUT_SHORT = errors.RequestTimedOutError("Request timed out after 79 ms")


def fails(heard, raised):
    """A client that logged `heard` while it tried, and gave up by `raised`."""
    with one_line_errors(LOGIN):
        for error in heard:
            CLIENT.error("Connection failed: %s", error)
        raise raised


def test_a_broker_that_never_answered_is_not_said_to_refuse_the_login():
    with pytest.raises(Unavailable, match="does not answer"):
        fails([CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))


def test_a_broker_that_only_hangs_up_is_not_said_to_refuse_the_login():
    with pytest.raises(Unavailable, match=r"does not answer: .*socket disconnected"):
        fails([HUNG_UP] * 9, errors.KafkaTimeoutError("bootstrap"))


def test_a_last_attempt_cut_short_does_not_hide_what_those_before_met():
    with pytest.raises(Unavailable, match="socket disconnected"):
        fails([HUNG_UP, CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))


def test_a_refusal_is_said_whatever_came_after_it():
    with pytest.raises(AuthError, match=r"refuses user 'alice'.*no such user"):
        fails([REFUSED, HUNG_UP, CUT_SHORT], errors.KafkaTimeoutError("bootstrap"))


def test_what_a_broker_said_before_it_hung_up_is_read():
    """Both are there before the client looks, as they are on a busy machine."""
    ours, broker = socket.socketpair()
    ours.setblocking(False)
    broker.sendall(b"refused")
    broker.close()
    net = NetworkSelector()
    transport = KafkaTCPTransport(net, ours)
    try:
        assert transport._sock_recv() == (b"refused", None)
        data, error = transport._sock_recv()
        assert data == b""
        assert isinstance(error, errors.KafkaConnectionError)
    finally:
        ours.close()
        net.close()
