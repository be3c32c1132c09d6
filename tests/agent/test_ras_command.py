"""An agent asks the NCCL RAS of its ranks, here a fake one."""

import socket

import pytest

from pulsetrain.agent import ras_command
from pulsetrain.agent.commands import Commands
from pulsetrain.analytics.hangs import ras, ras_lag
from pulsetrain.protocol.messages import ReadRas
from tests.agent.fakenode import FakeCheckpoints
from tests.agent.test_commands import Node
from tests.collectors.machine.fake_ras import communicator, fake_ras, report

ANSWER = report(communicator("0x1", [8, 7]))


def test_the_answer_comes_packed():
    with fake_ras(ANSWER) as fake:
        data = ras_command.run(ReadRas(id=1), {"NCCL_RAS_ADDR": f"127.0.0.1:{fake.port}"})
    assert ras_lag.unpack(data["report"]) == ras.parse(ANSWER)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NCCL_RAS_ENABLE": "0"}, "is off"),
        ({"NCCL_RAS_ADDR": "h:x"}, "allowed: HOST:PORT"),
        ({"NCCL_RAS_ADDR": f"127.0.0.1:{free_port()}"}, "nothing listens"),
    ],
)
def test_where_there_is_none_the_reply_says_why_and_is_no_error(environ, words):
    replies = []
    commands = Commands(Node(), FakeCheckpoints(), environ=environ)
    commands._run(ReadRas(id=1), replies.append)
    assert replies[0].error == ""
    assert words in replies[0].data["why_not"]


@pytest.mark.parametrize("answer", ["{}", '{"communicators": 3}', "[1] }"])
def test_what_is_no_report_is_one_line(answer):
    with fake_ras(answer) as fake:
        data = ras_command.run(ReadRas(id=1), {"NCCL_RAS_ADDR": f"127.0.0.1:{fake.port}"})
    assert data["why_not"].startswith("not a NCCL RAS report")
