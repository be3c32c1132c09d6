"""Which links carry nothing, and which node they have in common."""

import pytest

from pulsetrain.analytics.hangs.broken_links import find
from pulsetrain.analytics.hangs.job_view import JobView
from pulsetrain.protocol.messages import RankActivity, StuckConnection, WorldNode
from tests.recovery.builders import S, status

NODES = "abcd"


def world(nodes="abcd", address="10.0.0.{}"):
    return tuple(
        WorldNode(node=name, node_rank=i, address=address.format(i), peer_port=1, nproc=1)
        for i, name in enumerate(nodes)
    )


def activity(rank, *remotes, local="10.0.0.{}"):
    stuck = tuple(StuckConnection(local=local.format(rank), remote=r, resends=5) for r in remotes)
    return RankActivity(
        rank=rank, cpu_ratio=0.0, helper_cpu_ratio=0.0, io_bytes_s=0.0, still_ns=9 * S, stuck=stuck
    )


def view(*activities, nodes="abcd", phase="all_reduce", **more):
    ranks = tuple(status(r, last_phase=phase, progress_age_ns=9 * S) for r in range(len(nodes)))
    fields = {"world": world(nodes), "ranks": ranks, "activity": {a.rank: a for a in activities}} | more
    return JobView(job="j", attempt=0, now_ns=100 * S, **fields)


def test_nobody_resends_in_a_healthy_job():
    assert find(view(activity(0), activity(1))).pairs == ()


def test_one_link_is_named_whoever_resends():
    for found in (
        find(view(activity(0, "10.0.0.1"))),
        find(view(activity(1, "10.0.0.0"))),
        find(view(activity(0, "10.0.0.1"), activity(1, "10.0.0.0"))),
    ):
        assert (found.subject, found.nodes) == (("link", "a-b"), ["a", "b"])
        assert found.why == "no data passes between a and b"


def test_the_node_that_several_links_have_in_common_is_named():
    found = find(view(activity(0, "10.0.0.1"), activity(1, "10.0.0.2")))
    assert (found.subject, found.nodes) == (("node", "b"), ["b"])
    assert found.why == "no data passes between b and 2 other nodes"


def test_links_without_a_common_node_name_nobody():
    found = find(view(activity(0, "10.0.0.1"), activity(2, "10.0.0.3")))
    assert (found.subject, found.nodes) == (None, ["a", "b", "c", "d"])
    assert found.why == "no data passes over 2 links"


def test_an_address_of_the_jobs_own_network_is_known_from_the_other_end():
    other = {"local": "192.168.0.{}"}
    found = find(view(activity(0, "192.168.0.1", **other), activity(1, "192.168.0.0", **other)))
    assert found.subject == ("link", "a-b")


@pytest.mark.parametrize(
    "seen",
    [
        view(activity(0, "52.1.2.3")),
        view(activity(0, "10.0.0.1"), phase="forward"),
        view(activity(0, "127.0.0.1"), world=world(address="127.0.0.1")),
        view(activity(0, "10.0.0.0")),
        view(activity(0, "10.0.0.1"), world=()),
    ],
    ids=["a storage", "no collective", "an address of all nodes", "itself", "no world"],
)
def test_what_is_no_link_between_nodes_says_nothing(seen):
    found = find(seen)
    assert (found.pairs, found.subject, found.ranks) == ((), None, frozenset())
