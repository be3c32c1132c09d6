"""Which hub decides: two candidates over one store, in virtual time."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.leadership import Alone, Candidate, LeaderCollector, Role
from pulsetrain.kv.election import Election
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Write
from tests.hub.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock, monkeypatch):
    monkeypatch.setattr("pulsetrain.hub.leadership.WAIT_S", 0.0)
    store = FileStore(tmp_path, clock)
    yield store
    store.close()


def candidate(store, clock, name, prepare=lambda: None):
    return Candidate(Election(store, f"http://{name}#1", clock), prepare, clock)


def test_one_leads_the_other_waits_and_knows_who_leads(store, clock):
    a, b = candidate(store, clock, "a"), candidate(store, clock, "b")
    assert a.role is Role.WAITING
    a.turn()
    b.turn()
    assert (a.role, b.role, a.leader(), b.leader()) == (Role.LEADER, Role.WAITING, "http://a", "http://a")


def test_the_state_is_read_before_a_hub_leads_and_again_where_that_failed(store, clock):
    roles = []

    def prepare():
        roles.append(a.role)
        if len(roles) == 1:
            raise Unavailable("etcd is away")

    a = candidate(store, clock, "a", prepare)
    with pytest.raises(Unavailable):
        a.turn()
    assert a.role is Role.WAITING
    a.turn()
    assert (roles, a.role) == ([Role.WAITING, Role.WAITING], Role.LEADER)


def test_a_leader_that_stood_still_is_deposed_at_once_and_for_good(store, clock):
    a, b = candidate(store, clock, "a"), candidate(store, clock, "b")
    a.turn()
    stale = a.fence()
    clock.now_s += 3
    assert a.role is Role.DEPOSED
    b.turn()
    assert b.role is Role.LEADER
    for _ in range(2):
        a.turn()
    assert a.role is Role.DEPOSED
    write = [Write(key="x", value="1")]
    assert not store.commit(stale, write).ok
    assert not store.commit(a.fence(), write).ok
    assert store.commit(b.fence(), write).ok


def test_a_leader_that_renews_its_lease_goes_on_leading(store, clock):
    a = candidate(store, clock, "a")
    a.turn()
    for _ in range(5):
        clock.now_s += a.turn()
    assert a.role is Role.LEADER


def test_a_write_that_was_refused_ends_the_lead(store, clock):
    a = candidate(store, clock, "a")
    a.turn()
    a.depose()
    assert a.role is Role.DEPOSED


def test_whoever_asks_a_leader_is_told_once_the_store_has_answered(store, clock):
    a = candidate(store, clock, "a")
    a.turn()
    asked = [a.confirm(), a.confirm()]
    assert not any(future.done() for future in asked)
    a.turn()
    assert [future.result(0) for future in asked] == [3.0, 3.0]


def test_a_hub_that_waits_was_deposed_or_cannot_ask_confirms_nothing(store, clock, monkeypatch):
    a, b = candidate(store, clock, "a"), candidate(store, clock, "b")
    waiting = b.confirm()
    a.turn()
    b.turn()
    assert waiting.result(0) == 0.0

    cut_off = a.confirm()
    with monkeypatch.context() as patch:
        patch.setattr(store, "get", lambda key: (_ for _ in ()).throw(Unavailable("etcd is away")))
        with pytest.raises(Unavailable):
            a.turn()
    assert cut_off.result(0) == 0.0
    assert a.role is Role.LEADER

    clock.now_s += 3
    deposed = a.confirm()
    a.turn()
    assert deposed.result(0) == 0.0


def test_a_question_that_was_taken_back_disturbs_nobody(store, clock):
    a = candidate(store, clock, "a")
    a.turn()
    gone, other = a.confirm(), a.confirm()
    gone.cancel()
    a.turn()
    assert other.result(0) == 3.0


def test_a_hub_that_is_alone_always_leads():
    assert Alone("http://a").confirm().result(0) > 0


def test_prometheus_sees_who_leads(store, clock):
    for leadership, value in ((Alone("http://a"), "1.0"), (candidate(store, clock, "b"), "0.0")):
        registry = CollectorRegistry()
        registry.register(LeaderCollector(leadership))
        assert f"pulsetrain_hub_leading {value}" in generate_latest(registry).decode()
