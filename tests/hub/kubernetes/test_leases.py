import pytest

from pulsetrain.hub.kubernetes.leases import KubernetesLeases
from tests.kv.test_election import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def leases(api, clock):
    return KubernetesLeases(api, "state", "hub-0", clock)


def test_people_see_who_holds_a_lease(leases, cluster):
    leases.grant(3)
    (item,) = cluster.all("leases")
    assert (item["spec"]["holderIdentity"], item["spec"]["leaseDurationSeconds"]) == ("hub-0", 3)


def test_a_lease_ends_after_its_time_without_a_word_by_the_clock_of_who_looks(leases, clock):
    lease = leases.grant(3)
    for _ in range(3):
        clock.now_s += 2
        assert leases.keep_alive(lease) == 3
        assert leases.lives(lease)
    clock.now_s += 2.9
    assert leases.lives(lease)
    clock.now_s += 0.2
    assert not leases.lives(lease)
    assert leases.keep_alive(lease) == 0


def test_one_that_looks_for_the_first_time_waits_for_the_whole_time(api, leases, clock):
    lease = leases.grant(3)
    clock.now_s += 100
    other = KubernetesLeases(api, "state", "hub-1", clock)
    assert other.lives(lease)
    clock.now_s += 3.1
    assert not other.lives(lease)


def test_a_lease_that_is_kept_alive_at_the_last_moment_is_not_ended(server, leases, clock):
    lease = leases.grant(3)
    assert leases.lives(lease)
    clock.now_s += 4
    once = iter([lambda: leases.keep_alive(lease)])

    def meanwhile(method, path):
        if method == "DELETE":
            next(once, lambda: None)()

    server.fails = meanwhile
    assert leases.lives(lease)
    clock.now_s += 2
    assert leases.lives(lease)


def test_leases_that_no_key_was_bound_to_are_swept(leases, cluster, clock):
    used, unused = leases.grant(3), leases.grant(3)
    leases.sweep({used})
    assert len(cluster.all("leases")) == 2
    clock.now_s += 1000
    leases.sweep({used})
    assert [i["metadata"]["name"] for i in cluster.all("leases")] == [f"state-{used:x}"]
    assert not leases.lives(unused)
