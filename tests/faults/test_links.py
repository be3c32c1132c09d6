"""A port that is slow outwards: real connections, paced by the kernel."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain import faults
from pulsetrain.diagnostics.transfers import Sink
from pulsetrain.faults import links

STARTUP = Path(faults.__file__).parent / "startup"
SCRIPT = """
import sys
from pulsetrain.diagnostics.transfers import send
report = send("127.0.0.1", int(sys.argv[1]), seconds=0.4)
print(report.bits_per_s, report.error)
"""


def sent(environ, sink):
    command = [sys.executable, "-c", SCRIPT, str(sink.port)]
    run = subprocess.run(command, env=os.environ | environ, capture_output=True, check=True)
    rate, _, error = run.stdout.decode().strip().partition(" ")
    return float(rate), error


def test_nothing_is_changed_where_the_environment_names_no_file():
    before = socket.socket.connect
    assert not links.install({})
    assert socket.socket.connect is before


@pytest.mark.integration
def test_a_process_sends_at_the_rate_in_the_file_while_it_is_there(tmp_path):
    file, sink = tmp_path / "fault", Sink("127.0.0.1")
    environ = {"PYTHONPATH": str(STARTUP), links.ENVIRONMENT: str(file)}
    fast, _ = sent(environ, sink)
    links.slow_down(file, 2e7)
    slow, error = sent(environ, sink)
    assert error == ""
    assert 5e6 < slow < 1e8 < fast  # the kernel lets a first burst through, which counts in so short a time
    links.slow_down(file, 0)
    assert sent(environ, sink) == (0.0, "127.0.0.1: No route to host")
    sink.close()
