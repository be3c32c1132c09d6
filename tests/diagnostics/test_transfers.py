"""One TCP transfer over loopback."""

import socket

import pytest

from pulsetrain.diagnostics.transfers import Sink, own_address, send

pytestmark = pytest.mark.integration


def test_a_transfer_says_how_fast_it_was_and_that_nothing_was_lost():
    sink = Sink("127.0.0.1")
    report = send("127.0.0.1", sink.port, seconds=0.1, source="127.0.0.1")
    sink.close()
    assert report.error == ""
    assert report.bits_per_s > 1e7
    assert 0 <= report.resent_share < 0.01


@pytest.mark.skipif(not socket.has_ipv6 or not own_address("::1"), reason="no IPv6 here")
@pytest.mark.parametrize(("sink_at", "to"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1")])
def test_a_transfer_goes_over_ipv6_too(sink_at, to):
    sink = Sink(sink_at)
    assert own_address(to) == to
    report = send(to, sink.port, seconds=0.05, source=to)
    sink.close()
    assert (report.error, report.bits_per_s > 0) == ("", True)


def test_an_address_that_no_interface_has_is_no_own_one():
    assert [own_address(address) for address in ("2001:db8::7", "192.0.2.7", "no.such.host.")] == [""] * 3


def test_nobody_there_is_an_error_in_one_line():
    sink = Sink("127.0.0.1")
    sink.close()
    report = send("127.0.0.1", sink.port, seconds=0.1)
    assert "127.0.0.1" in report.error
    assert report.bits_per_s == 0.0


def test_a_limit_on_the_rate_is_kept():
    sink = Sink("127.0.0.1")
    report = send("127.0.0.1", sink.port, seconds=0.4, bits_per_s=4e8)
    sink.close()
    assert 1e8 < report.bits_per_s < 6e8  # one window may hold a segment more
