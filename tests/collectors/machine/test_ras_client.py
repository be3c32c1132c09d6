"""What is asked of NCCL RAS and what comes back, against a fake that speaks its protocol."""

import json
import socket
import time

import pytest

from pulsetrain.collectors.machine import ras_client
from pulsetrain.collectors.machine.ras_client import RasAddress, address_of, ask, parse_address
from pulsetrain.core.errors import CorruptData, Unavailable, UsageError
from tests.collectors.machine.fake_ras import communicator, fake_ras, report

ANSWER = report(communicator("0x1", [8, 8, 7, 8]))


def at(ras):
    return RasAddress(host="127.0.0.1", port=ras.port)


def test_the_report_is_asked_for_as_nccls_own_client_does():
    with fake_ras(ANSWER) as ras:
        assert json.loads(ask(at(ras))) == json.loads(ANSWER)
    assert ras.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_stopped_process_that_holds_the_port_is_left_for_another_one(monkeypatch):
    monkeypatch.setattr(ras_client, "GREETING_S", 0.1)
    with fake_ras(ANSWER, silent=2) as ras:
        assert json.loads(ask(at(ras)))["communicators_count"] == 1
        assert ras.connections == 3


def test_a_port_that_never_says_a_word_costs_a_limited_time(monkeypatch):
    monkeypatch.setattr(ras_client, "GREETING_S", 0.1)
    began_s = time.monotonic()
    with fake_ras(ANSWER, silent=99) as ras, pytest.raises(Unavailable, match="does not answer in time"):
        ask(at(ras), limit_s=0.25)
    assert time.monotonic() - began_s < 5


def test_a_closed_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match=f"nothing listens at 127.0.0.1:{port}") as refused:
        ask(RasAddress(host="127.0.0.1", port=port))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "answer", "words"),
    [
        ({"greeting": "HTTP/1.1 400 Bad Request"}, ANSWER, "is not NCCL RAS"),
        ({"greeting": "x" * 9000}, ANSWER, "is not NCCL RAS"),
        ({"formats": False}, ANSWER, "2.28.7 or later"),
        ({}, ANSWER[:200], "cut off"),
        ({}, "", "cut off"),
    ],
)
def test_a_foreign_old_or_torn_answer_is_one_line(options, answer, words):
    with fake_ras(answer, **options) as ras, pytest.raises(CorruptData, match=words) as refused:
        ask(at(ras))
    assert "\n" not in str(refused.value)


def test_an_answer_without_end_is_not_kept():
    with fake_ras(ANSWER) as ras, pytest.raises(CorruptData, match="longer than 100 bytes"):
        ask(at(ras), most_bytes=100)


def test_the_address_is_that_of_the_ranks():
    assert address_of({}) == RasAddress(host="localhost", port=28028)
    assert address_of({"NCCL_RAS_ADDR": "0.0.0.0:9"}) == RasAddress(host="127.0.0.1", port=9)
    assert str(parse_address("[fe80::1]:7")) == "[fe80::1]:7"
    with pytest.raises(Unavailable, match="NCCL_RAS_ENABLE is 0"):
        address_of({"NCCL_RAS_ENABLE": "0"})


@pytest.mark.parametrize("text", ["h:0", "h:65536", "h:x", "h:", "a b:1"])
def test_an_address_that_is_none_is_named(text):
    with pytest.raises(UsageError, match=r"NCCL_RAS_ADDR .*allowed: HOST:PORT"):
        address_of({"NCCL_RAS_ADDR": text})
