"""What is known of an attempt: who failed first, and when its first step is done."""

import dataclasses

from pulsetrain.agent.attempt import AttemptState
from pulsetrain.protocol.messages import GroupStatus, RankExit, RankStatus, Start

START = Start(id=1, job="j", attempt=3, node_rank=0, world=(), store_address="h", store_port=1)
GROUP = GroupStatus(group="world", members=(0, 1), enqueued=1, completed=1)


def exit_of(rank, code=1, attempt=3):
    return RankExit(node="n0", ts_ns=0, job="j", attempt=attempt, rank=rank, pid=1, code=code)


@dataclasses.dataclass
class Rank:
    rank: int
    last_step: int
    attempt: int = 3

    def status(self):
        return RankStatus(
            rank=self.rank,
            local_rank=self.rank,
            pid=1,
            state="running",
            last_step=self.last_step,
            last_phase="",
            phase_age_ns=0,
            progress=1,
            progress_age_ns=1,
            groups=(GROUP,),
        )


def launched():
    state = AttemptState("n0")
    state.launched(START, began_ns=0)
    return state


def test_the_culprit_of_a_stopped_attempt_is_known_until_the_next_launch():
    state = launched()
    state.ended(exit_of(1), present=True)
    state.ended(exit_of(0), present=True)
    assert state.culprit == exit_of(1)
    state.stopped()
    assert state.exits == ()
    assert state.culprit == exit_of(1)
    state.launched(dataclasses.replace(START, attempt=4), began_ns=0)
    assert state.culprit is None


def test_an_exit_that_is_noticed_after_the_stop_still_names_the_culprit():
    state = launched()
    state.stopped()
    state.ended(exit_of(1), present=False)
    assert state.exits == ()
    assert state.culprit == exit_of(1)


def test_a_rank_that_ends_while_others_are_launched_belongs_to_the_new_attempt():
    state = AttemptState("n0")
    state.ended(exit_of(0, attempt=3), present=True)
    state.launched(START, began_ns=0)
    assert state.exits == (exit_of(0, attempt=3),)


def test_the_first_step_is_reported_once_and_only_when_every_rank_has_done_it():
    state = launched()
    assert state.warming_up(1)
    assert state.first_step([Rank(0, 0), Rank(1, -1)], 1) is None
    report = state.first_step([Rank(0, 0), Rank(1, 0)], 2)
    assert report is not None
    assert (report.attempt, report.step) == (3, 0)
    assert state.first_step([Rank(0, 1), Rank(1, 1)], 3) is None
    assert not state.warming_up(3)


def test_ranks_of_another_attempt_do_not_count():
    assert launched().first_step([Rank(0, 5, attempt=2)], 1) is None


def test_without_ranks_no_first_step_is_awaited():
    state = launched()
    state.stopped()
    assert not state.warming_up(1)
    assert state.first_step([Rank(0, 5)], 1) is None
