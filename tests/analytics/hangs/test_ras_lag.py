"""Whose ranks a report of NCCL RAS tells of, who lags, and what fits through the wire.

The reports follow the format that NVIDIA/nccl writes (src/ras/client_support.cc). They were not recorded.
"""

import json

import pytest

from pulsetrain.analytics.hangs import ras, ras_lag
from pulsetrain.analytics.hangs.ras_lag import RankProcess, account, global_ranks, lags, pack, unpack
from pulsetrain.core.errors import CorruptData
from tests.collectors.machine.fake_ras import communicator, report


def parsed(*communicators):
    return ras.parse(report(*communicators))


def processes(ranks=8, per_node=4, first_pid=100):
    """Ranks of nodes 10.0.0.1, 10.0.0.2, ... with process ids that go on from node to node."""
    return [
        RankProcess(
            rank=r, pid=first_pid + r, node=f"n{r // per_node}", address=f"10.0.0.{1 + r // per_node}"
        )
        for r in range(ranks)
    ]


WORLD = communicator("0x1", [42] * 5 + [41] + [42] * 2)


def test_a_rank_that_began_less_than_its_peers_is_named_with_communicator_and_counts():
    told = account(parsed(WORLD), parsed(WORLD), processes())
    assert (told["state"], told["verdict"], told["culprits"]) == ("lagging", "rank", [5])
    assert told["sentence"] == (
        "NCCL RAS: communicator 0x1 of 8 ranks: 5 began 41 collectives, 0-4,6-7 began 42"
    )
    (lag,) = told["communicators"]
    assert (lag["behind"], lag["ahead"], lag["silent"], lag["size"]) == ("5", "0-4,6-7", "", 8)


def test_a_rank_that_does_not_answer_is_told_as_silent():
    stuck = parsed(communicator("0x1", [42, None, 42, 42]))
    told = account(stuck, stuck, processes(4))
    assert told["culprits"] == [1]
    assert "1 does not answer" in told["sentence"]


def test_communicators_at_work_and_even_ones_accuse_nobody():
    before, after = parsed(communicator("0x1", [8, 7])), parsed(communicator("0x1", [9, 8]))
    assert account(before, after, processes(2))["state"] == "moving"
    even = parsed(communicator("0x1", [8, 8]))
    told = account(even, even, processes(2))
    assert (told["state"], told["culprits"], told["communicators"]) == ("even", [], [])


def test_a_member_that_is_no_rank_of_the_job_hides_no_rank_that_lags():
    """As of a process whose id belongs to nobody in the job: a server that joined the communicator."""
    joined = communicator("0x2", [9, 8, 9], pids=[100, 101, 777])
    stuck = parsed(joined)
    ranks = {("10.0.0.1", 100): 0, ("10.0.0.1", 101): 1}
    (lag,) = lags(stuck, stuck, ranks)
    assert (lag["behind"], lag["ahead"], lag["size"]) == ("1", "0", 3)
    assert ras.judge(stuck, stuck, ranks).culprits == (1,)
    works = parsed(communicator("0x2", [9, 8, 10], pids=[100, 101, 777]))
    assert lags(stuck, works, ranks) == []
    assert ras.judge(stuck, works, ranks).verdict == "none"


def test_an_answer_about_another_job_accuses_nobody():
    told = account(parsed(WORLD), parsed(WORLD), processes(first_pid=900))
    assert (told["state"], told["culprits"]) == ("unknown", [])
    assert "another job" in told["sentence"]


def test_ranks_of_a_group_are_told_as_global_ranks_by_host_and_process():
    tensor = communicator("0x2", [9, 8], host="10.0.0.2", pids=[106, 107])
    told = account(parsed(tensor), parsed(tensor), processes())
    assert told["culprits"] == [7]
    assert told["communicators"][0]["ahead"] == "6"


def test_nodes_whose_processes_have_equal_numbers_are_told_apart_by_their_address():
    same = [
        RankProcess(rank=r, pid=100 + r % 2, node=f"n{r // 2}", address=f"10.0.0.{1 + r // 2}")
        for r in range(4)
    ]
    pair = parsed(communicator("0x2", [9, 8], host="10.0.0.2"))
    assert sorted(global_ranks(pair, same).values()) == [2, 3]
    assert global_ranks(parsed(communicator("0x2", [9, 8], host="10.9.9.9")), same) == {}


def test_two_communicators_of_one_hash_are_two():
    one, other = communicator("0x2", [5, 5]), communicator("0x2", [7, 6], pids=[102, 103], second="0xc:0xd")
    stuck = parsed(one, other)
    assert len(stuck) == 2
    assert account(stuck, stuck, processes(4))["culprits"] == [3]


def test_of_many_counts_the_largest_and_the_smallest_are_kept():
    spread = parsed(communicator("0x1", list(range(100, 120))))
    (lag,) = lags(spread, spread, global_ranks(spread, processes(20, 20)))
    assert [c["collectives"] for c in lag["counts"]] == [119, *range(106, 99, -1)]
    assert lag["behind"] == "0-18"


def test_a_report_goes_through_the_wire_unchanged_and_small():
    whole = parsed(communicator("0x1", [8] * 64), communicator("0x2", [3, None] * 32))
    packed = json.dumps(pack(whole))
    assert unpack(json.loads(packed)) == {name: tuple(m) for name, m in whole.items()}
    assert len(packed) < 10_000


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"processes": 3, "kinds": [], "communicators": []},
        {"processes": [], "kinds": [], "communicators": [["0x1", [[9, 0, 0, 1, 0]]]]},
        {"processes": [["h", "x"]], "kinds": [], "communicators": []},
    ],
)
def test_what_is_no_packed_report_is_corrupt_data(packed):
    with pytest.raises(CorruptData):
        unpack(packed)


def test_what_could_not_be_asked_is_one_line_and_no_verdict():
    assert ras_lag.unknown("nothing listens")["verdict"] == "uncertain"
