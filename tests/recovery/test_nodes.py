"""One node: its connection and the commands that wait for a reply."""

import asyncio

import pytest

from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol.messages import (
    LOAD_CPU_S,
    UNCONFIRMED,
    GpuIdentity,
    Leaving,
    Reply,
    SelfCheck,
    Start,
    decode,
    encode,
)
from pulsetrain.recovery.nodes import Node, NodeState
from tests.recovery import virtual_time
from tests.recovery.builders import S, heartbeat, hello, status


class Wire:
    """A connection that keeps what is sent."""

    def __init__(self, error=None):
        self.sent, self.error = [], error

    async def send(self, text):
        if self.error:
            raise self.error
        self.sent.append(decode(text))


async def ask(node, timeout_s=5.0):
    task = asyncio.create_task(node.ask(SelfCheck(id=7), timeout_s))
    await asyncio.sleep(0)
    return task


def test_gpus_that_came_after_the_hello_replace_those_of_it():
    node, late = Node(hello(), Wire().send, 0.0), (GpuIdentity(uuid="GPU-1", model="H200"),)
    node.take_heartbeat(decode(encode(heartbeat("a", gpus=late))), 1.0)
    assert node.hello.gpus == late
    node.take_heartbeat(heartbeat("a"), 2.0)
    assert node.hello.gpus == late


def test_a_command_gets_the_reply_with_its_id():
    async def scenario():
        wire = Wire()
        node = Node(hello(), wire.send, 0.0)
        task = await ask(node)
        node.answered(Reply(id=8, node="a", error="somebody else's"))
        node.answered(Reply(id=7, node="a", data={"ok": True}))
        return wire.sent, await task

    sent, reply = asyncio.run(scenario())
    assert (sent, reply.data) == ([SelfCheck(id=7)], {"ok": True})


@pytest.mark.parametrize(("refusals", "error"), [(1, ""), (2, ""), (9, UNCONFIRMED)])
def test_a_command_that_was_refused_because_the_hub_did_not_show_its_lead_is_sent_again(refusals, error):
    async def scenario(now_s):
        sent = []

        async def send(text):
            command = decode(text)
            sent.append(command.id)
            refused = UNCONFIRMED if len(sent) <= refusals else ""
            asyncio.get_running_loop().call_soon(
                node.answered, Reply(id=command.id, node="a", error=refused, data={})
            )

        node = Node(hello(), send, 0.0)
        return await node.ask(SelfCheck(id=7), 5.0), sent

    reply, sent = virtual_time.run(scenario)
    assert (reply.id, reply.error) == (7, error)
    assert len(sent) == len(set(sent)) == min(refusals + 1, 3)


def test_a_lost_connection_answers_what_was_pending_with_an_error():
    async def scenario():
        node = Node(hello(), Wire().send, 0.0)
        task = await ask(node)
        node.disconnect(1.0)
        return await task, await node.ask(SelfCheck(id=9), 1.0)

    pending, later = asyncio.run(scenario())
    assert (pending.error, later.error) == ("connection closed", "not connected")


def test_silence_and_a_connection_that_fails_are_replies_with_an_error():
    async def scenario():
        silent = Node(hello(), Wire().send, 0.0)
        broken = Node(hello(), Wire(Unavailable("closed")).send, 0.0)
        return await silent.ask(SelfCheck(id=1), 0.001), await broken.ask(SelfCheck(id=1), 1.0)

    silent, broken = asyncio.run(scenario())
    assert (silent.error, broken.error) == ("no answer in 0.001 s", "closed")


def test_an_old_connection_that_closes_late_is_not_the_nodes():
    old, new = Wire(), Wire()
    node = Node(hello(), old.send, 0.0)
    node.disconnect(1.0)
    node.reconnect(hello(), new.send, 2.0)
    assert (node.owns(old.send), node.owns(new.send), node.closed_s) == (False, True, None)


def test_a_node_is_usable_while_it_is_connected_and_not_gone():
    node = Node(hello(), Wire().send, 0.0)
    assert node.usable
    node.state = NodeState.EVICTED
    assert not node.usable


def test_a_node_that_comes_back_is_not_leaving_any_more():
    node = Node(hello(), Wire().send, 0.0)
    node.take_heartbeat(heartbeat("a"), 3.0)
    node.leaves(Leaving(node="a", reason="r", signal="SIGINT"), 4.0)
    assert (node.heartbeat_s, node.leaving_s, node.leaving.signal) == (3.0, 4.0, "SIGINT")
    node.reconnect(hello(), Wire().send, 5.0)
    assert node.leaving is None


def test_what_an_agent_says_of_other_nodes_ranks_is_left_out():
    node = Node(hello("a"), None, 0.0)
    both = heartbeat("a", status(0), status(3))
    assert node.take_heartbeat(both, 1.0) is both  # it is in no world yet
    node.ranks = range(2)
    assert [s.rank for s in node.take_heartbeat(both, 2.0).ranks] == [0]
    assert [s.rank for s in node.heartbeat.ranks] == [0]


@pytest.mark.parametrize("sent", [lambda beat: beat, lambda beat: decode(encode(beat))])
def test_the_longest_time_after_which_a_rank_went_on_is_kept(sent):
    node = Node(hello(), None, 0.0)

    def beat(progress, age_s, last_step=5):
        age_ns = int(age_s * S)
        ranks = [status(r, progress=p, progress_age_ns=age_ns, last_step=last_step) for r, p in progress]
        node.take_heartbeat(sent(heartbeat("a", *ranks)), 1.0)

    beat([(0, 1), (1, 1)], 50.0, last_step=-1)
    beat([(0, 2), (1, 2)], 3.0)
    assert node.longest_quiet_s == 0  # before its first step
    beat([(0, 2), (1, 2)], 4.0)
    assert node.longest_quiet_s == 0  # it stands still
    beat([(0, 3), (1, 2)], 0.0)
    assert node.longest_quiet_s == 4.0
    beat([(0, 4), (2, 9)], 0.0)
    assert node.longest_quiet_s == 4.0


@pytest.mark.parametrize(
    ("attempt", "restoring", "says"),
    [(-1, 4, (-1, 4)), (4, 4, (-1, 4)), (-1, 5, (-1, 5)), (4, -1, (4, -1)), (-1, -1, (-1, -1))],
)
def test_a_heartbeat_tells_how_the_restore_goes_of_which_the_hello_spoke(attempt, restoring, says):
    node = Node(hello(restoring=4), Wire().send, 0.0)
    node.take_heartbeat(heartbeat("a", attempt=attempt, restoring=restoring), 1.0)
    assert (node.hello.attempt, node.hello.restoring) == says
    assert node.busy == (says != (-1, -1))


def test_a_heartbeat_changes_no_hello_that_speaks_of_no_restore():
    node = Node(hello(), Wire().send, 0.0)
    node.take_heartbeat(heartbeat("a", attempt=4, restoring=5), 1.0)
    assert node.hello == hello()


def _launch(cpu_s_of):
    """How a launch of a node ends, and when. It answers after 200 s. `cpu_s_of` is its load after a time."""

    async def scenario(now_s):
        node = Node(hello(), Wire().send, 0.0)
        start = Start(
            id=7,
            job="j",
            attempt=1,
            node_rank=0,
            world=(),
            store_address="a",
            store_port=1,
            restore_step=9,
            sources={},
        )

        node.take_heartbeat(heartbeat("a", gauges={LOAD_CPU_S: cpu_s_of(0)}), 0.0)

        async def load():
            for second in range(200):
                gauges = {LOAD_CPU_S: cpu_s_of(second)}
                node.take_heartbeat(heartbeat("a", gauges=gauges), float(second))
                await asyncio.sleep(1.0)
            node.answered(Reply(id=7, node="a"))

        loads = asyncio.create_task(load())
        reply = await node.ask(start, 60.0)
        ended_s = now_s()
        loads.cancel()
        return reply.error, ended_s

    return virtual_time.run(scenario)


def test_a_launch_may_take_as_long_as_its_load_goes_on():
    assert _launch(lambda second: 3.0 + min(second, 150) * 0.01) == ("", 200.0)


def test_a_load_that_hangs_is_given_up():
    assert _launch(lambda second: 3.0 + min(second, 80) * 0.01) == ("no answer in 180 s", 180.0)
    assert _launch(lambda second: 3.0) == ("no answer in 60 s", 60.0)
