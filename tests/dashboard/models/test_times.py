"""The time range of an address."""

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.dashboard.models.times import TimeChoice, choice, moment_text, read

S = 10**9
NOW, LAST = 10_000 * S, 5_000 * S
THREE = 1_795_575_600 * S


def test_a_running_job_is_looked_at_up_to_now_and_one_that_is_over_up_to_its_end():
    quarter = TimeChoice(last="15 minutes")
    assert quarter.bounds(running=True, last_ns=LAST, now_ns=NOW) == (9_110 * S, 10_010 * S)
    assert quarter.bounds(running=False, last_ns=LAST, now_ns=NOW) == (4_170 * S, 5_070 * S)
    assert TimeChoice().bounds(running=True, last_ns=0, now_ns=NOW)[0] == 6_410 * S


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-25T03:00",
        "2026-11-25 03:00:00",
        "2026-11-25T03:00Z",
        "2026-11-25T05:00+02:00",
        " 2026-11-25T03:00 ",
    ],
)
def test_moments_are_utc_where_they_do_not_say_otherwise(text):
    assert choice({"from": text}) == TimeChoice(from_ns=THREE)
    assert moment_text(THREE) == "2026-11-25T03:00"


def test_moments_go_before_a_span_and_an_open_end_is_now():
    chosen = choice({"last": "1 day", "from": "1970-01-01T00:01", "to": "1970-01-01T00:02"})
    assert chosen.bounds(running=True, last_ns=LAST, now_ns=NOW) == (60 * S, 120 * S)
    assert choice({"from": "1970-01-01T00:01"}).bounds(running=True, last_ns=0, now_ns=NOW) == (
        60 * S,
        10_010 * S,
    )
    assert choice({"to": "1970-01-02"}).bounds(running=True, last_ns=0, now_ns=NOW) == (0, 86_400 * S)


def test_a_job_that_was_over_by_then_has_no_time_left():
    late = choice({"from": "2026-11-25"})
    assert late.bounds(running=False, last_ns=LAST, now_ns=NOW) == (late.from_ns, late.from_ns)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"from": "3am"}, "time from=3am: give a date and time in UTC, such as 2026-11-25T03:00"),
        ({"to": "9999-01-01"}, "time to=9999-01-01: give a date"),
        ({"from": "2026-11-25T03:00", "to": "2026-11-25T03:00"}, "it is not after from=2026-11-25T03:00"),
        ({"last": "2 weeks"}, "time last=2 weeks: allowed are 15 minutes, 1 hour, 6 hours, 1 day, 30 days"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_is_allowed(asked, words):
    with pytest.raises(UsageError, match="time ") as raised:
        choice(asked)
    assert words in str(raised.value)
    assert not read(asked).given


def test_nothing_is_chosen_by_default():
    assert not choice({}).given
    assert choice({"last": "1 day"}).given
    assert choice({"to": "2026-11-25"}).absolute
