"""The script's own checkpoints: which is whole, whether a restart can use it, what ranks are told."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pulsetrain.protocol.messages import OwnCheckpoint
from pulsetrain.recovery.own_checkpoints import KEPT, MAX_FILES, OwnCheckpoints
from tests.recovery.builders import status

S = 1_000_000_000


def own(step, path="/c/latest.pt", **changes):
    fields = {"step": step, "bytes": 100, "path": path, "written_ns": step * S, "file_bytes": 100}
    return OwnCheckpoint(**(fields | changes))


def rank(number, saved_step=None, *, last_step=0, path="/c/latest.pt"):
    saved = () if saved_step is None else (own(saved_step, path),)
    return status(number, last_step=last_step, saved=saved)


def written(*steps, ranks=(0,), attempt=0):
    checkpoints = OwnCheckpoints()
    for step in steps:
        checkpoints.note(attempt, [rank(r, step) for r in ranks])
    return checkpoints


def test_without_a_checkpoint_there_is_nothing_to_resume_from():
    checkpoints = OwnCheckpoints()
    checkpoints.note(0, [rank(0), rank(1)])
    checkpoints.look(0, [rank(0), rank(1)])
    assert checkpoints.newest() is None
    assert not checkpoints.can_resume()


def test_a_checkpoint_from_which_the_next_attempt_went_on_is_whole():
    checkpoints = written(9)
    checkpoints.started(1, resumed_step=4)
    assert not checkpoints.can_resume()
    checkpoints.started(1, resumed_step=9)
    assert checkpoints.can_resume()


def test_ranks_that_a_smaller_world_has_not_are_not_waited_for():
    checkpoints = written(9, 19, ranks=(0, 1))
    checkpoints.note(1, [rank(0, 29)])
    newest = checkpoints.newest()
    assert (newest.step, newest.complete) == (29, True)
    checkpoints.note(1, [rank(1)])  # it is there, so it is waited for
    assert (checkpoints.newest().step, checkpoints.newest().complete) == (19, True)


def test_what_was_written_last_is_whole_once_the_job_has_finished():
    checkpoints = written(9)
    assert not checkpoints.newest().complete
    checkpoints.finished()
    assert checkpoints.newest().complete


def test_the_first_checkpoint_is_whole_once_every_rank_has_gone_on():
    checkpoints = written(9)
    checkpoints.look(0, [rank(0, last_step=10), rank(1, last_step=9)])
    assert (checkpoints.newest().complete, checkpoints.can_resume()) == (False, False)
    checkpoints.look(0, [rank(0, last_step=10), rank(1, last_step=10)])
    assert (checkpoints.newest().complete, checkpoints.can_resume()) == (True, True)


def test_only_while_the_first_checkpoint_may_become_whole_is_it_worth_a_look():
    checkpoints = OwnCheckpoints()
    assert not checkpoints.undecided(0)
    checkpoints.note(0, [rank(0, 9)])
    assert (checkpoints.undecided(0), checkpoints.undecided(1)) == (True, False)
    checkpoints.look(0, [rank(0, last_step=10)])
    assert not checkpoints.undecided(0)
    checkpoints.look(0, [rank(0, last_step=9)])  # once whole, always whole
    assert checkpoints.can_resume()


def test_ranks_of_a_later_attempt_say_nothing_about_a_checkpoint_of_an_earlier_one():
    checkpoints = written(9)
    checkpoints.look(1, [rank(0, last_step=10), rank(1, last_step=10)])
    assert not checkpoints.newest().complete


def test_a_later_checkpoint_is_whole_once_the_usual_ranks_have_written_it():
    checkpoints = written(10, 20, ranks=(0, 1))
    checkpoints.note(0, [rank(0, 30)])
    assert (checkpoints.newest().step, checkpoints.newest().ranks) == (20, (0, 1))
    checkpoints.note(0, [rank(1, 30)])
    newest = checkpoints.newest()
    assert (newest.step, newest.bytes, newest.files, newest.complete) == (30, 200, 2, True)


def test_a_rank_that_wrote_once_is_not_waited_for_forever():
    checkpoints = OwnCheckpoints()
    checkpoints.note(0, [rank(3, 0)])
    for step in (10, 20, 30):
        checkpoints.note(0, [rank(0, step)])
    assert (checkpoints.newest().step, checkpoints.newest().complete) == (30, True)


def test_a_newer_attempt_counts_before_a_higher_step():
    checkpoints = written(10, 20, 30)
    checkpoints.note(1, [rank(0, 15)])
    assert (checkpoints.newest().attempt, checkpoints.newest().step) == (1, 15)


def test_a_script_that_began_anew_beside_its_checkpoint_does_not_resume_by_itself():
    checkpoints = written(10, 20)
    assert checkpoints.can_resume()
    checkpoints.started(1, -1)
    assert not checkpoints.can_resume()
    checkpoints.started(2, 20)  # it does after all
    assert checkpoints.can_resume()


def test_the_shortest_gap_between_saves_is_that_of_earlier_attempts():
    assert written(10, 20, 25).shortest_gap(1) == 5
    assert written(9).shortest_gap(1) == 10
    assert written(9).shortest_gap(0) == 0


def test_a_first_attempt_that_begins_with_its_first_step_ignores_nothing():
    checkpoints = OwnCheckpoints()
    checkpoints.started(0, -1)
    checkpoints.note(0, [rank(0, 10)])
    checkpoints.note(0, [rank(0, 20)])
    assert checkpoints.can_resume()


def test_ranks_are_told_their_own_files_and_those_of_the_first_writer():
    checkpoints = OwnCheckpoints()
    checkpoints.note(0, [rank(r, 10, path=f"/c/{r}.pt") for r in range(4)])
    checkpoints.note(0, [rank(r, 20, path=f"/c/{r}.pt") for r in range(4)])
    told = checkpoints.files(range(2, 4))
    assert {(o.path, o.step) for o in told} == {("/c/0.pt", 20), ("/c/2.pt", 20), ("/c/3.pt", 20)}


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 12))
@example(list(range(2 * KEPT)), 6)
def test_what_is_remembered_and_told_is_bounded(steps, ranks):
    checkpoints = OwnCheckpoints()
    for step in steps:
        checkpoints.note(0, [rank(r, step, path=f"/c/{step}-{r}.pt") for r in range(ranks)])
        newest = checkpoints.newest()
        assert newest is not None
        assert len(newest.ranks) == ranks
    told = checkpoints.files(range(ranks))
    assert len(told) <= min(MAX_FILES, KEPT * ranks)
    assert [o.written_ns for o in told] == sorted((o.written_ns for o in told), reverse=True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30), st.randoms())
def test_hearing_the_same_again_changes_nothing(reports, random):
    once, often = OwnCheckpoints(), OwnCheckpoints()
    for number, step in reports:
        once.note(0, [rank(number, step)])
        for _ in range(random.randint(1, 3)):
            often.note(0, [rank(number, step)])
    assert once.newest() == often.newest()
    assert once.files(range(4)) == often.files(range(4))
