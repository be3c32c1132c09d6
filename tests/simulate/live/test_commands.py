"""Simulated agents answer the hub's commands as real ones do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsetrain.core.errors import CorruptData
from pulsetrain.protocol.messages import (
    ArithmeticCheck,
    DumpStacks,
    HostStore,
    Leave,
    LinkSend,
    LinkSink,
    PairCheck,
    ReadRas,
    SelfCheck,
    Stop,
    WorldNode,
    encode,
)
from pulsetrain.simulate.live.commands import CommandReader, answer, carry_out
from tests.simulate.live.fleets import launched, run_until, start

NODE = "sim-00001"
HANG = {"kind": "hung_rank", "at_s": 3, "rank": 5}


def ask(command, job=None, now_s=101.0, node=NODE):
    return answer(command, job or launched(), node, now_s)


def test_a_fresh_launch_loads_nothing_and_a_restart_loads_every_rank_of_the_node():
    assert ask(start(node_rank=1)).data["load_ns"] == {}
    assert ask(start(node_rank=1, restore_step=4)).data["load_ns"].keys() == {"4", "5", "6", "7"}


def test_a_store_is_hosted_and_pairs_meet():
    assert ask(HostStore(id=1, job="j")).data["port"] > 0
    pair = PairCheck(id=1, members=(NODE, "b"), store_address="h", store_port=1, prefix="0:0")
    assert ask(pair).data["ok"]


def test_links_and_arithmetic_of_a_simulated_node_are_good():
    assert ask(LinkSink(id=1, seconds=9.0)).data["port"] > 0
    assert ask(LinkSink(id=2, seconds=0.0)).data["port"] == 0
    sent = ask(LinkSend(id=3, address="h", port=1, seconds=0.5))
    assert (sent.after_s, sent.data["bits_per_s"] > 0) == (0.5, True)
    assert ask(ArithmeticCheck(id=4, seconds=5.0)).data["ok"]


def test_a_broken_node_fails_the_self_check():
    job = launched(HANG)
    assert ask(SelfCheck(id=1), job).data["ok"]
    run_until(job, 100.0, 105.0)
    report = ask(SelfCheck(id=1, seconds=0.3), job, 105.0)
    assert (report.data["ok"], report.data["failed"], report.after_s) == (False, ["gemm"], 0.3)
    assert ask(SelfCheck(id=1), job, 105.0, "sim-00002").data["ok"]


def test_stacks_show_where_the_hung_rank_stands_and_where_its_peers_wait():
    job = launched(HANG)
    run_until(job, 100.0, 110.0)
    data = ask(DumpStacks(id=1), job, 110.0).data
    leaves = {rank: stack["frames"][-1] for stack in data["stacks"] for rank in stack["ranks"]}
    assert leaves.keys() == {4, 5, 6, 7}
    assert leaves[5].startswith("wait_for_device")
    assert leaves[7].startswith("all_reduce_gradients")
    assert leaves[4].startswith("clip_gradients")
    assert data["details"]["5"]["place"] == leaves[5]


def test_only_the_ranks_that_are_asked_for_are_read():
    assert [s["ranks"] for s in ask(DumpStacks(id=1, ranks=(6,))).data["stacks"]] == [[6]]
    assert [s["ranks"] for s in ask(DumpStacks(id=1, first_only=True)).data["stacks"]] == [[4]]


@pytest.mark.parametrize("command", [Stop(id=1, reason="r"), Leave(id=1, reason="r")])
def test_a_node_that_is_stopped_or_sent_away_has_no_ranks(command):
    job = launched()
    carry_out(command, job, NODE, 101.0)
    assert job.ranks(NODE) == range(0)


def test_a_launch_begins_an_attempt():
    job = launched()
    carry_out(start(1, node_rank=1), job, NODE, 101.0)
    assert (job.number, job.ranks(NODE)) == (1, range(4, 8))


@pytest.mark.parametrize("nodes", [1, 4, 3000])
def test_launches_are_read_alike_whether_their_world_is_known_or_not(nodes):
    world = tuple(
        WorldNode(node=f"n{n}", node_rank=n, address="h", peer_port=1, nproc=8) for n in range(nodes)
    )
    reader = CommandReader()
    for node_rank in (0, 1):
        command = replace(start(3, node_rank=node_rank), world=world)
        assert reader.read(encode(command)) == command
    other = start(4)
    assert reader.read(encode(other)) == other


def test_other_commands_are_read_too_and_what_is_none_is_refused():
    reader = CommandReader()
    stop = Stop(id=1, reason='a,"world":[] in a text')
    assert reader.read(encode(stop)) == stop
    with pytest.raises(CorruptData):
        reader.read("nonsense")


def test_every_answer_takes_some_time():
    commands = (
        start(),
        HostStore(id=1, job="j"),
        SelfCheck(id=1),
        DumpStacks(id=1),
        ReadRas(id=1),
        Stop(id=1, reason=""),
    )
    assert all(ask(command).after_s > 0 for command in commands)
