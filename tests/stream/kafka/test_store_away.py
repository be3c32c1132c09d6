"""What stores the rows is away for a minute: all of them are there afterwards, once.

The minute passes while other tests of this folder run, see `conftest.away`.
"""

import signal
import time

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]


def test_an_ingest_that_stands_still_for_a_minute_loses_and_doubles_nothing(away):
    """It comes back to a group that has given it up, with an insert that was under way."""
    while time.monotonic() < away.until:
        away.send()
        time.sleep(0.2)
    away.pipeline.process.send_signal(signal.SIGCONT)
    away.send()
    away.pipeline.drain()
    away.pipeline.assert_each_once()
