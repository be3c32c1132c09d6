"""What an agent does with ranks that are to stand still."""

import pytest

from pulsetrain.agent import holding
from pulsetrain.collectors.reading.position import PairCount, RankPosition
from pulsetrain.collectors.reading.status_page import GroupCell
from pulsetrain.core.errors import UsageError
from pulsetrain.elastic import positions
from pulsetrain.elastic.barrier import Channel
from pulsetrain.protocol.messages import HoldRanks

GROUP = GroupCell(
    name="tp", members=(0, 1), enqueued=5, completed=5, op="", op_seq=0, op_bytes=0, op_start_ns=0, op_peer=-1
)


class Rank:
    """Comes to stand after some looks."""

    def __init__(self, rank, after):
        self.rank, self.after, self.asked, self.looks = rank, after, None, 0

    def hold(self, number, past, until_ns, saved_step):
        self.asked = (number, past, until_ns)

    @property
    def stands(self):
        self.looks += 1
        return self.looks > self.after

    def position(self):
        pairs = (
            PairCount(group=0, peer=1, sends=True, count=3),
            PairCount(group=9, peer=1, sends=True, count=1),
        )
        return RankPosition(
            stands=self.looks > self.after,
            arrivals=1,
            in_flight=2,
            ran_on=0,
            complete=True,
            groups=(GROUP,),
            pairs=pairs,
        )


class Time:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns

    def sleep(self, seconds):
        self.now_ns += int(seconds * 1e9)


def run(*ranks, attempt=3, **changes):
    time = Time()
    command = HoldRanks(**{"id": 1, "attempt": 3, "number": 8, "past": {"1": 2}} | changes)
    answer = holding.run(command, attempt, ranks, clock_ns=time, sleep=time.sleep)
    return {int(r): positions.decode(int(r), text) for r, text in answer["ranks"].items()}, time.now_ns


def test_ranks_are_asked_and_it_answers_once_one_more_of_them_stands():
    ranks = Rank(0, after=0), Rank(1, after=10)
    seen, took_ns = run(*ranks)
    assert [rank.asked for rank in ranks] == [(8, 0, 10**10), (8, 2, 10**10)]
    assert (seen[0].stands, seen[1].stands) == (True, True)
    assert 0 < took_ns < 10**8
    assert seen[0].entered == {Channel("tp", range(2)): 5, Channel("tp", (0, 1), directed=True): 3}
    assert seen[0].in_flight == 2


def test_it_answers_in_time_where_no_rank_comes_to_stand():
    seen, took_ns = run(Rank(0, after=10**9))
    assert not seen[0].stands
    assert took_ns >= 10**8


def test_it_answers_at_once_where_all_stand_already():
    assert run(Rank(0, after=0))[1] == 0


def test_ranks_are_let_go_by_number_0():
    rank = Rank(0, after=0)
    assert run(rank, number=0)[0] == {}
    assert rank.asked[0] == 0


def test_ranks_of_another_attempt_are_left_alone():
    rank = Rank(0, after=0)
    with pytest.raises(UsageError, match="attempt 3 does not run here; attempt 4 does"):
        run(rank, attempt=4)
    assert rank.asked is None
