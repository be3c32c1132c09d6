"""One TCP transfer over loopback."""

import pytest

from pulsetrain.diagnostics.transfers import Sink, send

pytestmark = pytest.mark.integration


def test_a_transfer_says_how_fast_it_was_and_that_nothing_was_lost():
    sink = Sink("127.0.0.1")
    report = send("127.0.0.1", sink.port, seconds=0.1, source="127.0.0.1")
    sink.close()
    assert report.error == ""
    assert report.bits_per_s > 1e7
    assert 0 <= report.resent_share < 0.01


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
