"""Packets with open files between agent and zygote."""

import os
import subprocess
import sys

import pytest

from pulsetrain.agent.processes.zygote_protocol import AgentChannel, ZygoteChannel
from pulsetrain.protocol import packets


@pytest.fixture
def channels():
    ours, theirs = packets.pair()
    agent, zygote = AgentChannel(ours), ZygoteChannel(theirs)
    yield agent, zygote
    agent.close()
    zygote.close()


def test_a_message_arrives_with_its_files(channels, tmp_path):
    agent, zygote = channels
    path = tmp_path / "out"
    with path.open("wb") as file:
        agent.send({"op": "signal", "pid": 7, "signal": 9}, [file.fileno(), file.fileno()])
    message, files = zygote.receive()
    assert message == {"op": "signal", "pid": 7, "signal": 9}
    for fd in files:
        os.write(fd, b"x")
        os.close(fd)
    assert path.read_bytes() == b"xx"


def test_messages_keep_their_bounds_and_their_order(channels):
    agent, zygote = channels
    for code in range(20):
        zygote.send({"op": "exit", "pid": 1, "code": code})
    assert [agent.receive()[0]["code"] for _ in range(20)] == list(range(20))


def test_a_large_environment_arrives(channels):
    agent, zygote = channels
    agent.send({"op": "call", "id": 1, "target": "x:y", "kwargs": {"text": "x" * 2_000_000}})
    assert len(zygote.receive()[0]["kwargs"]["text"]) == 2_000_000


def test_the_other_end_is_gone(channels):
    agent, zygote = channels
    zygote.close()
    assert agent.receive() is None
    with pytest.raises(OSError, match=r".+"):
        agent.send({"op": "signal", "pid": 1, "signal": 9})


@pytest.mark.integration
def test_a_process_whose_parent_has_gone_ends_at_once():
    script = (
        "from pulsetrain.agent.processes.zygote_protocol import die_with\ndie_with(1, 15)\nprint('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-15, b"")
