"""The agent's main loop, with a hub that does what the test says and ranks without processes."""

import queue
import signal
import threading
from dataclasses import replace

import pytest

from pulsetrain.agent.config import AgentConfig
from pulsetrain.agent.node import NodeParts
from pulsetrain.agent.supervise import Agent
from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.messages import Heartbeat, Hello, HostStore, Leave, Leaving, RankExit, Start, Stop
from tests.agent.fakehub import TOKEN, FakeHub
from tests.agent.fakenode import IDENTITY, LOOP, FakeCheckpoints, FakeRanks, FakeRecorder, FakeZygotes

CONFIG = AgentConfig(watch_s=0.01, heartbeat_s=0.02, quiet_usage_s=0.02, finish_grace_s=0.05)


class Clock:
    """Stands still until the test moves it."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return round(self.now_s * 1e9)


class Running:
    """An agent whose main loop runs on a thread; `outcome` is what it ended with."""

    def __init__(self, hub, token=TOKEN, clock=None):
        self.hub, self.zygotes, self.checkpoints = hub, FakeZygotes(), FakeCheckpoints()
        self.recorder = FakeRecorder()
        parts = NodeParts(
            ranks=FakeRanks,
            zygotes=self.zygotes,
            checkpoints=self.checkpoints,
            recorder=self.recorder,
            loops=lambda: (LOOP,),
            say=lambda line: self.said.put(line),
        )
        self.said = queue.SimpleQueue()
        self.agent = Agent(IDENTITY, CONFIG, HubAddress(url=hub.url, token=token), parts, clock=clock)
        self.ranks = self.agent.node.ranks
        self.outcome = self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            self.outcome = self.agent.run()
        except PulsetrainError as error:
            self.error = error

    def start(self):
        self.thread.start()
        return self

    def launch(self, attempt=0):
        self.hub.wait(Hello)
        reply = self.hub.start("a", self.hub.ask("a", HostStore, job="job"), attempt=attempt)
        assert reply.error == ""
        return self.ranks.all

    def ended(self):
        self.thread.join(40)
        assert not self.thread.is_alive()
        self.agent.close()
        return self.outcome


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.down()


@pytest.fixture
def agent(hub, monkeypatch):
    monkeypatch.setattr("pulsetrain.agent.supervise.RESTART_DELAY_S", 0.01)
    agents = []

    def agent(**options):
        agents.append(Running(hub, **options))
        return agents[-1]

    yield agent
    for each in agents:
        each.agent.interrupt(signal.SIGTERM)
        if each.thread.ident:
            each.thread.join(40)
        each.agent.close()


def test_heartbeats_tell_ranks_checkpoints_and_loops(hub, agent):
    agent().start().launch()
    heartbeat = hub.wait(Heartbeat, lambda h: h.attempt == 0)
    assert [rank.rank for rank in heartbeat.ranks] == [0, 1]
    assert heartbeat.held[0].step == 3
    names = [loop.name for loop in heartbeat.loops]
    assert names == ["hub_link", "fake", "supervise", "fake"]


def test_a_rank_that_ends_is_reported_and_is_the_culprit(hub, agent):
    a = agent().start()
    ranks = a.launch()
    a.ranks.end(ranks[1], 3)
    assert hub.wait(RankExit).rank == 1
    hub.ask("a", Leave, reason="job failed", exit_code=3)
    outcome = a.ended()
    assert (outcome.exit_code, outcome.reason, outcome.culprit.rank) == (3, "job failed", 1)


def test_a_rank_that_ended_because_the_agent_stopped_it_is_not_reported(hub, agent):
    a = agent().start()
    ranks = a.launch()
    assert hub.ask("a", Stop, reason="hang", grace_s=1.0).error == ""
    assert a.ranks.graces[-1] == 1.0
    a.ranks.end(ranks[0], -9)  # noticed late: its attempt is over
    hub.ask("a", Leave, reason="job failed", exit_code=1)
    assert a.ended().culprit.rank == 0
    assert hub.count(RankExit) == 0


def test_of_usage_errors_the_one_with_a_reason_is_heard_first(hub, agent):
    a = agent().start()
    quiet, talks = a.launch()
    talks.last_lines = ("train: needs 8 ranks",)
    a.ranks.end(quiet, 2)
    a.ranks.end(talks, 2)
    hub.wait(RankExit, lambda m: m.rank == 0)
    assert [m.rank for _, m in hub.received if isinstance(m, RankExit)] == [1, 0]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_agent_and_the_hub_hears_why_before_any_rank_ends(hub, agent, signum):
    a = agent().start()
    a.launch()
    a.agent.interrupt(signum)
    outcome = a.ended()
    assert (outcome.exit_code, outcome.reason) == (128 + signum, f"ended by {signum.name}")
    assert outcome.persist
    a.agent.end(outcome)
    assert (a.ranks.told_to_end[-1], a.ranks.graces[-1]) == (signum, 30.0)
    leaving = hub.wait(Leaving)
    assert (leaving.node, leaving.signal) == ("a", signum.name)
    assert hub.count(RankExit) == 0


@pytest.mark.parametrize(
    ("persists", "config", "grace_s"), [(True, {}, 5.0), (True, {"kill_grace_s": 9.0}, 9.0)]
)
def test_where_a_checkpoint_is_persisted_ranks_end_soon_unless_the_configuration_gives_more(
    hub, persists, config, grace_s
):
    checkpoints = FakeCheckpoints()
    checkpoints.persists = persists
    parts = NodeParts(
        ranks=FakeRanks, zygotes=FakeZygotes(), checkpoints=checkpoints, recorder=FakeRecorder()
    )
    agent = Agent(IDENTITY, replace(CONFIG, **config), HubAddress(url=hub.url, token=TOKEN), parts)
    assert agent.kill_grace_s == grace_s
    agent.close()


def test_healthy_ranks_of_a_job_that_failed_are_told_before_they_are_killed(hub, agent):
    a = agent().start()
    ranks = a.launch()
    a.ranks.end(ranks[1], 3)
    hub.ask("a", Leave, reason="job failed", exit_code=3, persist=True)
    a.thread.join(40)
    a.agent.end(a.outcome)
    assert (a.ranks.told_to_end[-1], a.ranks.graces[-1]) == (signal.SIGTERM, 5.0)


@pytest.mark.parametrize("persist", [True, False])
def test_the_hub_says_whether_what_is_saved_is_worth_keeping(hub, agent, persist):
    a = agent().start()
    a.launch()
    hub.ask("a", Leave, reason="job failed", exit_code=3, persist=persist)
    assert a.ended().persist is persist


def test_a_rank_that_does_not_die_does_not_keep_the_agent(hub, agent):
    a = agent().start()
    a.launch()
    a.ranks.stuck = True
    assert "did not end" in hub.ask("a", Leave, reason="evicted", exit_code=1).error
    assert a.ended().reason == "evicted"


def test_an_exception_is_counted_and_the_loop_goes_on(hub, agent):
    a = agent()
    a.recorder.fails = 1
    a.start()
    hub.wait(Hello)
    heartbeat = hub.wait(Heartbeat)
    supervise = next(loop for loop in heartbeat.loops if loop.name == "supervise")
    assert (supervise.failures, supervise.last_error) == (1, "OSError: no spool")


def test_an_end_whose_report_failed_is_reported_again(hub, agent):
    a = agent().start()
    ranks = a.launch()
    ranks[0].reports_fail = 1
    a.ranks.end(ranks[0], 1)
    assert hub.wait(RankExit).rank == 0


def test_a_zygote_that_died_is_replaced(hub, agent):
    a = agent().start()
    hub.wait(Hello)
    first = a.zygotes.current
    first.dead = True
    hub.wait(Heartbeat, skip=len(hub.received))
    hub.wait(Heartbeat, skip=len(hub.received))
    assert a.agent.node.zygote is not first


def test_a_wrong_token_ends_the_agent(agent):
    a = agent(token="guessed").start()
    a.ended()
    assert isinstance(a.error, AuthError)


def test_a_preload_that_fails_ends_the_agent(agent):
    a = agent()
    a.zygotes.current.ready, a.zygotes.current.dead = False, True
    a.start().ended()
    assert isinstance(a.error, Unavailable)


class Alone:
    """An agent without its hub whose ranks run. Its loop turns when the test says so."""

    def __init__(self, hub):
        self.clock, self.hub_returns = Clock(), True
        parts = NodeParts(
            ranks=FakeRanks,
            zygotes=FakeZygotes(),
            checkpoints=FakeCheckpoints(),
            recorder=FakeRecorder(),
        )
        address = HubAddress(url=hub.url, token=TOKEN)
        self.agent = Agent(
            IDENTITY, CONFIG, address, parts, clock=self.clock, keep_hub=lambda: self.hub_returns
        )
        self.ranks = self.agent.node.ranks
        start = Start(id=1, job="job", attempt=0, node_rank=0, world=(), store_address="h", store_port=1)
        self.ranks.spawn(None, start, {0: 0, 1: 0})
        assert self.agent.turn() is None

    def turn(self, seconds=0.0):
        self.clock.now_s += seconds
        return self.agent.turn()


@pytest.fixture
def alone(hub):
    alone = Alone(hub)
    yield alone
    alone.agent.close()


def test_finished_ranks_wait_for_a_hub_that_is_away_and_then_end(alone):
    for rank in alone.ranks.all:
        rank.code = 0
    assert alone.turn() is None
    assert alone.turn(CONFIG.finish_grace_s) is None
    outcome = alone.turn(0.01)
    assert outcome.reason == "every rank ended with status 0; the hub is away"


def test_a_failed_rank_waits_for_a_hub_that_is_away_and_then_ends_the_agent(alone):
    alone.ranks.end(alone.ranks.all[1], 3)
    assert alone.turn() is None
    assert alone.turn(CONFIG.failed_grace_s) is None
    outcome = alone.turn(0.01)
    assert (outcome.exit_code, outcome.persist, outcome.culprit.rank) == (3, True, 1)


def test_ranks_that_train_are_left_alone_though_the_hub_does_not_return(alone):
    alone.hub_returns = False
    assert alone.turn(10 * CONFIG.failed_grace_s) is None


def test_a_failed_rank_ends_the_agent_at_once_where_the_hub_does_not_return(alone):
    alone.hub_returns = False
    alone.ranks.end(alone.ranks.all[0], -9)
    assert alone.turn().exit_code == -9


def test_a_loop_that_turns_rarely_by_its_configuration_is_not_stale(hub):
    clock = Clock()
    parts = NodeParts(
        ranks=FakeRanks, zygotes=FakeZygotes(), checkpoints=FakeCheckpoints(), recorder=FakeRecorder()
    )
    seldom = replace(CONFIG, heartbeat_s=20.0)
    agents = [
        Agent(IDENTITY, c, HubAddress(url=hub.url, token=TOKEN), parts, clock=clock) for c in (CONFIG, seldom)
    ]
    clock.now_s += 21.0
    assert [agent._monitor.status().stale for agent in agents] == [True, False]
    for agent in agents:
        agent.close()


def test_heartbeats_go_out_once_in_each_period(hub):
    clock, recorder = Clock(), FakeRecorder()
    parts = NodeParts(
        ranks=FakeRanks, zygotes=FakeZygotes(), checkpoints=FakeCheckpoints(), recorder=recorder
    )
    agent = Agent(IDENTITY, CONFIG, HubAddress(url=hub.url, token=TOKEN), parts, clock=clock)
    for _ in range(4):
        agent.turn()
        clock.now_s += CONFIG.heartbeat_s / 2
    assert len(recorder.heartbeats) == 2
    agent.close()


def test_a_person_is_told_of_a_node_that_gets_nothing_to_run(hub):
    clock = Clock()
    running = Running(hub, clock=clock).start()
    hub.wait(Hello)
    while not running.agent._standing._since_s:
        pass
    clock.now_s += 61.0
    assert "nothing to run" in running.said.get(timeout=20)
    running.agent.interrupt(signal.SIGTERM)
    running.ended()
