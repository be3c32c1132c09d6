"""The channel between an agent and a rank that can go on in its process."""

import os

import pytest

from pulsetrain.protocol import rank_channel
from pulsetrain.protocol.rank_channel import RankChannel


@pytest.fixture
def ends():
    both = rank_channel.pair()
    yield both
    for end in both:
        end.close()


def test_a_packet_arrives_with_its_files(ends, tmp_path):
    agent, rank = ends
    file = tmp_path / "log"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT)
    assert agent.send(rank_channel.RESUME, [fd], env={"RANK": "1"})
    os.close(fd)
    message, files = rank.receive(1.0)
    assert message == {"op": "resume", "env": {"RANK": "1"}}
    os.write(files[0], b"said")
    os.close(files[0])
    assert file.read_text() == "said"


def test_nothing_within_the_time_is_none(ends):
    assert ends[0].receive(0.0) is None


def test_an_end_that_is_gone_is_none_and_cannot_be_told(ends):
    agent, rank = ends
    rank.close()
    assert agent.receive() is None
    assert not agent.send(rank_channel.ABORT)


def test_a_reader_that_takes_nothing_never_blocks_the_sender(ends):
    agent, _ = ends
    sent = [agent.send(rank_channel.ABORT, filler="x" * 60_000) for _ in range(100)]
    assert sent[0]
    assert not sent[-1]


def test_a_rank_finds_its_end_in_the_environment(ends):
    agent, rank = ends
    inherited = RankChannel.inherited({rank_channel.VARIABLE: str(os.dup(rank.fileno()))})
    assert inherited.send(rank_channel.LISTENING)
    assert agent.receive(1.0)[0] == {"op": "listening"}
    inherited.close()


@pytest.mark.parametrize("value", [None, "", "x", "-3", "999999"])
def test_a_process_without_an_agent_has_none(value):
    environ = {} if value is None else {rank_channel.VARIABLE: value}
    assert RankChannel.inherited(environ) is None


def test_a_descriptor_of_something_else_is_no_channel(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert RankChannel.inherited({rank_channel.VARIABLE: str(file.fileno())}) is None
