import pytest

from pulsetrain.kv.election import Election
from pulsetrain.kv.files import FileStore
from pulsetrain.kv.store import Write


class FakeClock:
    """A clock that a test moves."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return int(self.now_s * 1e9)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(tmp_path, clock):
    store = FileStore(tmp_path, clock)
    yield store
    store.close()


def write(store, candidate, value):
    return store.commit([candidate.fence()], [Write(key="budget", value=value)]).ok


def test_one_leads_and_the_other_waits_until_the_first_resigns(store, clock):
    a, b = Election(store, "a", clock), Election(store, "b", clock)
    assert a.campaign(0)
    assert not b.campaign(0)
    assert (a.leading, b.leading, b.leader()) == (True, False, "a")
    a.resign()
    assert not a.leading
    assert b.campaign(0)


def test_a_leader_that_keeps_its_lease_stays(store, clock):
    a, b = Election(store, "a", clock), Election(store, "b", clock)
    a.campaign(0)
    for _ in range(5):
        clock.now_s += 2
        assert a.renew()
        assert not b.campaign(0)


def test_a_leader_that_stood_still_neither_leads_nor_writes(store, clock):
    a, b = Election(store, "a", clock), Election(store, "b", clock)
    assert a.campaign(0)
    assert write(store, a, "1")
    stale = a.fence()
    clock.now_s += 3
    assert not a.leading
    assert b.campaign(0)
    assert write(store, b, "2")
    assert not store.commit([stale], [Write(key="budget", value="stale")]).ok
    assert not a.renew()
    assert not write(store, a, "stale")
    assert store.get("budget").value == "2"


def test_nobody_writes_without_having_led(store, clock):
    assert not write(store, Election(store, "a", clock), "1")


def test_a_key_that_an_unanswered_request_of_ours_created_is_ours(store, clock):
    lease = store.grant(3)
    store.commit((), [Write(key="leader", value="a", lease=lease)])
    a = Election(store, "a", clock)
    assert a.campaign(0)
    assert write(store, a, "1")


def test_a_leader_that_confirms_holds_the_lead_for_a_whole_lease_from_then_on(store, clock):
    a, b = Election(store, "a", clock), Election(store, "b", clock)
    a.campaign(0)
    clock.now_s += 2.5
    assert a.confirm() == 3.0
    clock.now_s += 2.5
    assert not b.campaign(0)


def test_the_store_and_not_the_clock_says_whether_a_leader_leads(store, clock):
    suspended = FakeClock()  # of a virtual machine that stood still
    a, b = Election(store, "a", suspended), Election(store, "b", clock)
    a.campaign(0)
    clock.now_s += 10
    assert b.campaign(0)
    assert a.leading
    assert a.confirm() == 0.0
    assert not a.leading
    assert b.confirm() == 3.0


def test_a_lead_whose_key_is_somebody_elses_is_not_confirmed(store, clock):
    a = Election(store, "a", clock)
    a.campaign(0)
    store.commit((), [Write(key="leader", value=None)])
    store.commit((), [Write(key="leader", value="b")])
    assert a.confirm() == 0.0
    assert not a.leading


def test_who_never_led_confirms_nothing(store, clock):
    assert Election(store, "a", clock).confirm() == 0.0
