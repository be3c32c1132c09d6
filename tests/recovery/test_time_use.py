"""Where the time of a job goes: sums that are whole, an hour that slides, and faults found late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.time_use import COUNTED, HOUR_NS, KEPT_STRETCHES, TimeBook, Use

S = 10**9
START = 1_700_000_000 * S


def book_of(*changes):
    """A book that begins with the job's start. `changes` are (use, seconds after the start)."""
    book = TimeBook(START)
    for use, at_s in changes:
        book.note(use, START + at_s * S)
    return book


def seconds(book, at_s, *, hour=False):
    row = book.use(START + at_s * S).row()
    return {use: s for use, s in row["seconds_1h" if hour else "seconds"].items() if s}


def test_the_time_until_the_first_step_is_the_start_and_the_rest_trains():
    book = book_of((Use.TRAIN, 10))
    assert seconds(book, 100) == {"start": 10, "train": 90}
    assert book.use(START + 100 * S).ettr == pytest.approx(0.9)


def test_a_new_hub_goes_on_with_what_the_one_before_it_kept():
    book = book_of((Use.TRAIN, 10), (Use.FAIL_OVER, 50), (Use.TRAIN, 60))
    again = TimeBook.recalled(book.kept())
    assert again.use(START + 100 * S) == book.use(START + 100 * S)
    assert again.present is Use.TRAIN


def test_of_very_many_changes_the_oldest_are_kept_as_sums_alone():
    book = book_of(*((use, at_s) for at_s in range(1, 1200, 2) for use in (Use.TRAIN, Use.RECOMPUTE)))
    for second in range(1200, 1800):
        book.note(Use.TRAIN if second % 2 else Use.RECOMPUTE, START + second * S)
    kept = book.kept()
    assert len(kept.stretches) == KEPT_STRETCHES
    assert TimeBook.recalled(kept).use(START + 1800 * S).total_ns == book.use(START + 1800 * S).total_ns


def test_no_time_has_no_ratio():
    row = TimeBook(START).use(START).row()
    assert (row["ettr"], row["ettr_1h"]) == (None, None)


def test_a_fault_that_is_found_late_takes_its_time_from_what_seemed_to_train():
    book = book_of((Use.TRAIN, 10))
    book.misjudged(START + 70 * S, START + 75 * S)
    book.note(Use.LOCATE, START + 75 * S)
    book.note(Use.FAIL_OVER, START + 77 * S)
    book.note(Use.RECOMPUTE, START + 80 * S)
    book.note(Use.TRAIN, START + 85 * S)
    assert seconds(book, 110) == {
        "start": 10, "train": 60 + 25, "detect": 5, "locate": 2, "fail_over": 3, "recompute": 5
    }  # fmt: skip


def test_a_hang_that_is_not_acted_on_trains_nothing_and_one_that_ends_by_itself_was_a_pause():
    book = book_of((Use.TRAIN, 10))
    use = book.use(START + 100 * S, START + 40 * S)
    assert (use.total_ns[Use.TRAIN], use.total_ns[Use.DETECT]) == (30 * S, 60 * S)
    assert (use.ettr, use.ettr_1h) == (0.3, 0.3)
    assert seconds(book, 100) == {"start": 10, "train": 90}


def test_an_onset_before_the_first_step_leaves_the_start_as_it_is():
    book = book_of((Use.TRAIN, 10))
    book.misjudged(START + 3 * S, START + 12 * S)
    assert seconds(book, 12) == {"start": 10, "detect": 2}


def test_a_second_fault_while_steps_are_done_again_is_detected_then_too():
    book = book_of((Use.TRAIN, 1), (Use.FAIL_OVER, 10), (Use.RECOMPUTE, 20))
    book.misjudged(START + 25 * S, START + 30 * S)
    assert seconds(book, 30) == {"start": 1, "train": 9, "fail_over": 10, "recompute": 5, "detect": 5}


def test_the_last_hour_forgets_what_the_whole_remembers():
    book = book_of((Use.TRAIN, 1000), (Use.FAIL_OVER, 2000), (Use.TRAIN, 2500))
    assert seconds(book, 2000 + 3600 + 100, hour=True) == {"fail_over": 400, "train": 3200}
    assert seconds(book, 9000, hour=True) == {"train": 3600}
    assert seconds(book, 9000) == {"start": 1000, "train": 1000 + 6500, "fail_over": 500}


def test_time_away_counts_for_nothing():
    book = book_of((Use.TRAIN, 10), (Use.AWAY, 20), (Use.START, 1020), (Use.TRAIN, 1030))
    assert seconds(book, 1040) == {"start": 20, "train": 20}


def test_a_clock_that_is_set_back_loses_nothing_and_invents_nothing():
    book = book_of((Use.TRAIN, 10), (Use.FAIL_OVER, 5), (Use.TRAIN, 20))
    assert seconds(book, 15) == {"start": 10, "fail_over": 10}


MOVES = st.tuples(st.sampled_from(list(Use)), st.integers(0, 5000), st.integers(0, 3000))


@given(st.lists(MOVES, max_size=20))
def test_every_second_is_counted_once_and_the_hour_holds_no_more_than_an_hour(moves):
    book, now_s, away_s = TimeBook(START), 0, 0
    use = Use.START
    for following, lasts_s, late_s in moves:
        now_s += lasts_s
        away_s += lasts_s * (use is Use.AWAY)
        if use is not Use.AWAY:
            book.misjudged(START + (now_s - late_s) * S, START + now_s * S)
        book.note(following, START + now_s * S)
        use = following
    told = book.use(START + now_s * S)
    assert sum(told.total_ns.get(each, 0) for each in COUNTED) == (now_s - away_s) * S
    assert sum(told.hour_ns.values()) <= HOUR_NS
    assert all(told.hour_ns.get(each, 0) <= told.total_ns.get(each, 0) for each in COUNTED)
