"""What waits to be sent, and in which order it goes."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.agent.outbox import Outbox
from pulsetrain.protocol.messages import Heartbeat, RankExit, Reply


def beat(seq):
    return Heartbeat(node="a", seq=seq, ts_ns=0, job="j", attempt=0)


def exit_of(rank):
    return RankExit(node="a", ts_ns=0, job="j", attempt=0, rank=rank, pid=1, code=1)


def sent(outbox, connection="now", failing_from=None):
    """What `send_all` sends on a connection that breaks at message `failing_from`."""
    messages = []

    async def send(message):
        if len(messages) == failing_from:
            raise ConnectionError
        messages.append(message)

    with contextlib.suppress(ConnectionError):
        asyncio.run(outbox.send_all(connection, send))
    return messages


@given(st.permutations(["exit", "beat", "reply"]))
def test_reports_go_first_and_replies_last(order):
    outbox = Outbox()
    for kind in order:
        match kind:
            case "exit":
                outbox.add_report(exit_of(3))
            case "beat":
                outbox.set_heartbeat(beat(1))
            case "reply":
                outbox.add_reply("now", Reply(id=1, node="a"))
    assert sent(outbox) == [exit_of(3), beat(1), Reply(id=1, node="a")]
    assert outbox.empty.is_set()


def test_of_heartbeats_the_newest_goes():
    outbox = Outbox()
    for seq in range(3):
        outbox.set_heartbeat(beat(seq))
    assert sent(outbox) == [beat(2)]


def test_a_reply_goes_only_where_its_command_came_from():
    outbox = Outbox()
    outbox.add_reply("before", Reply(id=1, node="a"))
    assert sent(outbox) == []
    assert outbox.empty.is_set()


@pytest.mark.parametrize("failing_from", [0, 1, 2])
def test_a_report_that_was_not_sent_goes_with_the_next_connection(failing_from):
    outbox = Outbox()
    for rank in range(3):
        outbox.add_report(exit_of(rank))
    first = sent(outbox, failing_from=failing_from)
    assert not outbox.empty.is_set()
    assert first + sent(outbox, "next") == [exit_of(rank) for rank in range(3)]


def test_what_was_sent_in_the_greeting_is_not_sent_again():
    outbox = Outbox()
    outbox.add_report(exit_of(0))
    outbox.add_report(exit_of(1))
    outbox.remove_reports([exit_of(0)])
    assert sent(outbox) == [exit_of(1)]
