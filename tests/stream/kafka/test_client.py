"""What every client of Kafka shares: its settings, and what a user reads of a failure."""

import logging
import socket

import pytest
from kafka import errors
from kafka.net import KafkaTCPTransport, NetworkSelector

from pulsetrain.core.config import load
from pulsetrain.core.errors import AuthError, ConfigError, Unavailable, UsageError
from pulsetrain.records.schema import RECORDS
from pulsetrain.stream.kafka import client
from pulsetrain.stream.kafka.client import KafkaConfig, client_options, create_topics, one_line_errors

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


def fails(logged, raised):
    """A client that logged `logged` while it tried, and gave up by `raised`."""
    with one_line_errors(LOGIN):
        for error in logged:
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


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("security_protocol", "TLS", "SASL_SSL"),
        ("servers", "nohost", "not host:port"),
        ("nonsense", 1, "unknown key"),
    ],
)
def test_a_wrong_setting_names_what_is_allowed(key, value, words):
    with pytest.raises(ConfigError, match=words):
        load(KafkaConfig, "kafka", file={"kafka": {key: value}})


@pytest.mark.parametrize(
    ("error", "ours", "words"),
    [
        (errors.TopicAuthorizationFailedError("spans"), UsageError, "gives no permission"),
        (errors.KafkaConfigurationError("bad"), UsageError, r"^Kafka \S*: KafkaConfigurationError: bad$"),
        (errors.NotLeaderForPartitionError(), Unavailable, "does not answer"),
        (ConnectionResetError("reset"), Unavailable, "does not answer: ConnectionResetError reset"),
    ],
)
def test_each_failure_is_one_line_of_ours(error, ours, words):
    with pytest.raises(ours, match=words) as caught:
        fails([], error)
    assert "\n" not in str(caught.value)


def test_a_topic_and_its_record_name_each_other():
    config = KafkaConfig(prefix="site.")
    assert config.topic("spans") == "site.spans"
    assert config.record_of("site.spans") == "spans"


def test_only_what_is_set_is_passed_on():
    plain = client_options(KafkaConfig(servers="a:1, b:2"))
    assert plain["bootstrap_servers"] == ["a:1", "b:2"]
    assert not [name for name in plain if name.startswith(("ssl", "sasl"))]
    assert client_options(LOGIN)["sasl_plain_username"] == "alice"


class Admin:
    """Stands in for the client's administrator. `busy`: how often the brokers do not answer in time."""

    busy = 0
    topics: frozenset[str] = frozenset()
    requested: tuple[tuple[str, ...], ...] = ()

    def __init__(self, **options):
        pass

    def list_topics(self):
        if Admin.busy:
            Admin.busy -= 1
            raise errors.RequestTimedOutError
        return list(Admin.topics)

    def create_topics(self, names, *, raise_errors, timeout_ms):
        Admin.requested += (tuple(names),)
        return {"topics": [{"name": name, "error_code": 29} for name in names]}  # no permission: no error

    def close(self):
        pass


@pytest.fixture
def admin(monkeypatch):
    monkeypatch.setattr(client, "KafkaAdminClient", Admin)
    for name, value in (("busy", 0), ("topics", frozenset()), ("requested", ())):
        monkeypatch.setattr(Admin, name, value)
    return Admin


def test_missing_topics_are_asked_for_and_others_are_not(admin):
    admin.topics = frozenset({"p.spans", "p.steps"})
    create_topics(KafkaConfig(prefix="p."))
    (names,) = admin.requested
    assert set(names) == {f"p.{record}" for record in RECORDS} - admin.topics | {"p.dead-letter"}
    admin.topics = frozenset({*names, *admin.topics})
    create_topics(KafkaConfig(prefix="p."))
    assert len(admin.requested) == 1


def test_brokers_that_do_not_answer_in_time_are_unavailable(admin):
    admin.busy = 10**9
    with pytest.raises(Unavailable, match="RequestTimedOut"):
        create_topics(KafkaConfig(timeout_s=0))
