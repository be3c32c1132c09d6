"""What an agent does for each command of the hub, with stand-ins for ranks, zygote and checkpoints."""

import os
import socket
import threading
from dataclasses import replace

import pytest

from pulsetrain.agent.commands import Commands
from pulsetrain.core.errors import (
    NotReshardable,
    PulsetrainError,
    Unavailable,
    Unrestorable,
    WorldNeeded,
)
from pulsetrain.protocol.messages import (
    DumpStacks,
    HostStore,
    Leave,
    LinkSink,
    PairCheck,
    ProgramUpdate,
    SaveFrom,
    SelfCheck,
    ShareDevices,
    Start,
    Stop,
    WorldNode,
)
from tests.agent.fakenode import IDENTITY, FakeCheckpoints, FakeRanks, FakeZygote


class Node:
    """A node that notes what happens, in order."""

    identity = IDENTITY

    def __init__(self):
        self.ranks, self.zygote = FakeRanks(print), FakeZygote()
        self.happened = []

    def launched(self, start, began_ns):
        self.happened.append(("launched", start.attempt))

    def stopped(self):
        self.happened.append("stopped")

    def send_heartbeat(self):
        self.happened.append("heartbeat")

    def leave(self, command, send_reply):
        self.happened.append(("leave", command.reason))


class Session:
    """A node with its commands; `execute` waits for the reply."""

    def __init__(self):
        self.node, self.checkpoints, self.arenas = Node(), FakeCheckpoints(), []
        self.commands = Commands(
            self.node, self.checkpoints, self._create_arena, port_speed={"127.0.0.1": 2.5e10}.get
        )

    def _create_arena(self):
        self.arenas.append(os.open(os.devnull, os.O_RDONLY))
        return self.arenas[-1]

    def execute(self, command):
        replies, replied = [], threading.Event()

        def send_reply(reply):
            replies.append(reply)
            self.node.happened.append("reply")
            replied.set()

        self.commands.execute(command, send_reply)
        assert replied.wait(40)
        return replies[0]


@pytest.fixture
def session():
    session = Session()
    yield session
    session.commands.close()


def start(node_rank=0, attempt=0, **fields):
    world = tuple(WorldNode(node=f"n{r}", node_rank=r, address="h", peer_port=1, nproc=2) for r in range(3))
    return Start(
        id=1,
        job="job",
        attempt=attempt,
        node_rank=node_rank,
        world=world,
        store_address="h",
        store_port=1,
        **fields,
    )


def test_a_start_launches_the_nodes_ranks_and_a_heartbeat_goes_before_the_reply(session):
    reply = session.execute(start(node_rank=1))
    assert reply.error == ""
    assert [rank.rank for rank in session.node.ranks.all] == [2, 3]
    assert session.node.happened == ["stopped", ("launched", 0), "heartbeat", "reply"]
    assert session.checkpoints.cleared == 1


def test_a_start_restores_each_rank_from_its_source(session):
    reply = session.execute(start(restore_step=7, sources={"1": "peer:n2"}))
    assert session.checkpoints.loads == [(0, 7, "memory"), (1, 7, "peer:n2")]
    assert reply.data["load_ns"] == {"0": 5, "1": 5}
    assert session.checkpoints.cleared == 0


def test_arenas_stay_with_their_ranks_and_those_of_other_nodes_are_closed(session):
    session.execute(start())
    first = list(session.arenas)
    session.execute(start(attempt=1))
    assert session.arenas == first
    session.execute(start(attempt=2, node_rank=1))
    assert set(session.checkpoints.attached) == {2, 3}
    for fd in first:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_an_arena_that_still_has_shards_goes_back_to_its_rank(session):
    session.checkpoints.keeps_retired = True
    session.execute(start())
    first = dict(session.checkpoints.attached)
    session.execute(start(attempt=1, node_rank=1))
    assert session.checkpoints.retired == first
    session.execute(start(attempt=2))
    assert session.checkpoints.attached == first


def test_ranks_of_a_world_of_another_size_put_their_state_together(session):
    reply = session.execute(start(restore_step=7, shards={"0": "peer:n2", "1": "storage"}))
    assert session.checkpoints.resharded == [((0, 1), {"0": "peer:n2", "1": "storage"})]
    assert (session.checkpoints.loads, reply.data["load_ns"]) == ([], {"0": 7})


def test_a_state_that_cannot_be_put_together_is_told_apart_from_a_failure(session):
    session.checkpoints.load_error = NotReshardable("w: ranks differ")
    reply = session.execute(start(restore_step=7, shards={"0": "peer:n2"}))
    assert (reply.error, reply.data) == ("w: ranks differ", {"not_reshardable": "w: ranks differ"})


def test_an_agent_that_needs_nodes_it_was_not_told_asks_for_them_and_launches_nothing(session):
    session.checkpoints.load_error = WorldNeeded("no node that is known has it")
    reply = session.execute(start(restore_step=7, world_nodes=900))
    assert (reply.error, reply.data) == ("", {"needs_world": True})
    assert session.node.ranks.all == ()
    assert len(session.checkpoints.world[0]) == 900


def test_a_step_that_is_whole_nowhere_is_named(session):
    session.checkpoints.load_error = Unrestorable("rank 1 has no step 7", rank=1, step=7)
    reply = session.execute(start(restore_step=7))
    assert (reply.error, reply.data) == ("rank 1 has no step 7", {"unrestorable": [1, 7]})
    assert session.node.ranks.all == ()


def test_a_stop_overtakes_a_launch_that_still_restores(session):
    loading, go_on = threading.Event(), threading.Event()

    def load(rank, step, source, *attempts):
        loading.set()
        assert go_on.wait(40)
        return 1

    session.checkpoints.load = load
    replies = []
    thread = threading.Thread(target=lambda: replies.append(session.execute(start(restore_step=3))))
    thread.start()
    assert loading.wait(40)
    assert session.execute(Stop(id=2, reason="evicted")).error == ""
    go_on.set()
    thread.join(40)
    assert replies[0].error == "attempt 0 was stopped while it started"
    assert session.node.ranks.all == ()


def test_a_stop_that_came_before_a_launch_does_not_end_what_that_has_started(session):
    """An agent that stood still gets both at once, and a thread each. The later one may be the first."""
    stop, replied, held = Stop(id=2, reason="rank 0 has failed"), [], []
    thread = threading.Thread

    class Held(thread):
        def start(self):
            held.append(super().start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Thread", Held)
        session.commands.execute(stop, replied.append)
    session.execute(start(attempt=1))
    held[0]()
    while not replied:
        pass
    assert replied[0].error == ""
    assert session.node.happened.count("stopped") == 1
    assert session.node.happened[1] == ("launched", 1)


def test_a_stop_that_came_after_a_launch_ends_it_whichever_is_the_first(session):
    held, replied = [], []

    class Held(threading.Thread):
        def start(self):
            held.append(super().start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "Thread", Held)
        session.commands.execute(start(attempt=1), replied.append)
    session.execute(Stop(id=2, reason="rank 0 has failed"))
    held[0]()
    while not replied:
        pass
    assert "was stopped while it started" in replied[0].error
    assert ("launched", 1) not in session.node.happened


def test_each_store_is_new_and_replaces_the_jobs_old_one(session):
    ports = [session.execute(HostStore(id=i, job="job")).data["port"] for i in range(2)]
    assert ports == [9001, 9002]
    assert session.node.zygote.signals == [(501, 9)]


def test_ranks_are_asked_to_save_through_their_checkpoints(session):
    assert session.execute(SaveFrom(id=1, step=7)).error == ""
    assert session.checkpoints.save_from_step == 7


def test_ranks_are_told_to_share_devices_or_say_in_one_line_why_not(session):
    assert session.execute(ShareDevices(id=1, devices=1)).data == {"devices": {}, "late": []}
    assert session.execute(ShareDevices(id=2, devices=0)).error == "devices = 0: allowed: 1 to 2"


def test_checks_run_in_the_zygote(session):
    session.node.zygote.results = {
        "selfcheck:run": {"ok": True},
        "all_gather:run": {"ok": True, "seconds": 1},
    }
    assert session.execute(SelfCheck(id=1, seconds=2.0)).data == {"ok": True}
    with socket.create_server(("127.0.0.1", 0)) as store:
        assert session.execute(pair_check(store)).data == {"ok": True, "seconds": 1}
    _, kwargs, timeout_s = session.node.zygote.calls[-1]
    assert (kwargs["index"], kwargs["size"]) == (1, 2)
    assert timeout_s == pytest.approx(6.0, abs=1.0)


def pair_check(store):
    address, port = store.getsockname()
    return PairCheck(
        id=2, members=("b", "a"), store_address=address, store_port=port, prefix="p", timeout_s=5.0
    )


@pytest.mark.parametrize("state", [{"ready": False}, {"dead": True}])
def test_where_the_zygote_is_started_anew_a_self_check_has_not_failed(session, state):
    vars(session.node.zygote).update(state)
    reply = session.execute(SelfCheck(id=1))
    assert (reply.error, session.node.zygote.calls) == ("", [])
    assert "started anew" in reply.data["not_ready"]


def test_a_zygote_that_ends_while_it_checks_has_not_failed_the_check(session):
    def call(*_):
        session.node.zygote.dead = True
        raise Unavailable("zygote: it has ended")

    session.node.zygote.call = call
    assert "started anew" in session.execute(SelfCheck(id=1)).data["not_ready"]


def test_a_node_says_what_its_port_promises_and_what_machine_it_is(session):
    data = session.execute(LinkSink(id=1, seconds=0.0)).data
    assert data["speed_bits_per_s"] == 2.5e10
    assert "cores" in data["machine"]


def test_all_gpus_of_a_node_have_time_to_meet(session):
    session.node.zygote.results = {"selfcheck:run": {"ok": True}}
    session.execute(SelfCheck(id=1, seconds=2.0, whole_node=True, group_timeout_s=30.0))
    session.execute(SelfCheck(id=2, seconds=2.0))
    assert [call[1:] for call in session.node.zygote.calls] == [
        ({"seconds": 2.0, "whole_node": True, "timeout_s": 30.0, "rdma": []}, 82.0),
        ({"seconds": 2.0}, 22.0),
    ]


def test_a_self_check_knows_which_gpus_cuda_should_list():
    node = Node()
    node.zygote.results = {"selfcheck:run": {"ok": True}}
    usable = []
    commands = Commands(node, FakeCheckpoints(), gpus=lambda: usable)
    for known in ({}, {"gpus": ["GPU-a"]}):  # the driver may answer late
        usable += known.get("gpus", [])
        replied = threading.Event()
        commands.execute(SelfCheck(id=1, seconds=2.0), lambda _, replied=replied: replied.set())
        assert replied.wait(40)
        assert node.zygote.calls[-1][1] == {"seconds": 2.0, **known}


def test_a_pair_check_that_times_out_is_a_failed_check_and_no_error(session):
    session.node.zygote.results = {"all_gather:run": Unavailable("no result in 6 s")}
    with socket.create_server(("127.0.0.1", 0)) as store:
        reply = session.execute(pair_check(store))
    assert reply.error == ""
    assert reply.data == {"ok": False, "seconds": 5.0, "error": "no result in 6 s"}


def test_a_member_that_does_not_reach_the_store_says_so_at_once_and_forks_nothing(session):
    with socket.create_server(("127.0.0.1", 0)) as store:
        check = pair_check(store)
    reply = session.execute(check)
    assert (reply.error, session.node.zygote.calls) == ("", [])
    assert (reply.data["ok"], reply.data["store_unreachable"]) == (False, True)
    assert reply.data["error"].startswith(f"store not reached: 127.0.0.1:{check.store_port}: ")


@pytest.mark.parametrize(
    ("failure", "error"),
    [(PulsetrainError("no NVML"), "no NVML"), (ZeroDivisionError("x"), "ZeroDivisionError: x")],
)
def test_whatever_happens_a_command_is_answered(session, failure, error):
    session.node.zygote.results = {"selfcheck:run": failure}
    assert session.execute(SelfCheck(id=1)).error == error


def test_stacks_of_a_node_without_ranks_are_empty(session):
    assert session.execute(DumpStacks(id=1)).data == {"stacks": [], "blind": {}, "details": {}}


def test_the_main_thread_gets_the_command_to_leave(session):
    session.commands.execute(Leave(id=1, reason="evicted"), print)
    assert session.node.happened == [("leave", "evicted")]


def test_where_the_store_is_not_reached_no_rank_is_launched_and_the_reply_says_why(session):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    unreachable = replace(start(check_store=True), store_address="127.0.0.1", store_port=port)
    reply = session.execute(unreachable)
    assert (reply.error, session.node.ranks.all) == ("", ())
    assert f"127.0.0.1:{port}" in reply.data["store_unreachable"]


def test_a_stop_that_keeps_survivors_parks_them_and_kills_nothing_else(session):
    session.execute(start())
    graces = list(session.node.ranks.graces)
    stop = Stop(id=2, reason="rank 1 died", keep=True, wake_s=4.0, fresh=(1,))
    reply = session.execute(stop)
    assert (reply.error, reply.data) == ("", {"parked": 1})
    assert session.node.ranks.asked_to_keep == [((1,), 4.0)]
    assert (session.node.ranks.graces, session.node.ranks.dropped) == (graces, 0)


def test_a_start_leaves_kept_processes_alone_and_says_who_was_kept(session):
    session.execute(start())
    session.execute(Stop(id=2, reason="rank 1 died", keep=True, fresh=(1,)))
    session.node.ranks.kept = [0]
    reply = session.execute(start(attempt=1))
    assert (reply.data["kept"], reply.data["not_kept"]) == ([0], {"1": "it is at fault"})
    assert session.node.ranks.dropped == 0


def test_a_start_says_which_update_it_has_launched(session):
    reply = session.execute(start(program=ProgramUpdate(number=4, argv=("b.py",))))
    assert (reply.error, reply.data["program"]) == ("", 4)
    assert session.execute(start(attempt=1)).data["program"] == 0


def test_where_the_program_of_an_update_is_not_there_nothing_is_launched(session):
    session.node.ranks.lacks_program = "script 'b.py': no such file"
    reply = session.execute(start(program=ProgramUpdate(number=4, argv=("b.py",))))
    assert reply.error == reply.data["program_refused"] == "script 'b.py': no such file"
    assert session.node.ranks.all == ()


def test_a_stop_for_good_ends_kept_processes_too(session):
    session.execute(Stop(id=2, reason="pre-empted"))
    assert session.node.ranks.dropped == 1
