"""What ranks say of their instrumentation, as one description of the job."""

from __future__ import annotations

import dataclasses
import json

from pulsetrain.recovery.instrumentation import Instrumentation
from tests.recovery.builders import status as rank_status


def says(rank, step=5, **entries):
    text = json.dumps(entries) if entries else ""
    return dataclasses.replace(rank_status(rank), last_step=step, instrumentation=text)


def test_ranks_that_agree_give_one_description_that_outlives_silent_heartbeats():
    known = Instrumentation()
    known.note(0, [says(0, steps="inferred"), says(1, steps="inferred")])
    known.note(0, [says(0), says(1)])
    assert known.combined() == {"steps": "inferred"}


def test_what_one_rank_knows_is_known_and_what_differs_is_named():
    known = Instrumentation()
    known.note(0, [says(0, loss="none", steps="explicit"), says(1, loss="inferred", steps="inferred")])
    assert known.combined() == {"loss": "inferred", "steps": "explicit | inferred"}


def test_a_new_attempt_begins_anew_and_an_old_one_says_nothing_any_more():
    known = Instrumentation()
    known.note(0, [says(0, steps="inferred")])
    known.note(1, [says(0, loss="inferred")])
    known.note(0, [says(0, steps="inferred")])
    assert known.combined() == {"loss": "inferred"}


def test_it_is_news_once_for_each_attempt_after_some_steps():
    known = Instrumentation()
    early, later = [says(0, step=0, steps="inferred")], [says(0, step=2, steps="inferred")]
    known.note(0, early)
    assert known.news(early) == {}
    assert known.news(later) == {"steps": "inferred"}
    assert known.news(later) == {}
    known.note(1, early)
    assert known.news(later) == {"steps": "inferred"}


def test_steps_that_nobody_has_explained_yet_are_no_news():
    known = Instrumentation()
    known.note(0, [says(0, step=-1, steps="none", loss="none")])
    assert known.news([says(0, step=40)]) == {}  # the heartbeat between them was dropped for a newer one
    known.note(0, [says(0, step=70, steps="inferred", loss="inferred")])
    assert known.news([says(0, step=70)]) == {"steps": "inferred", "loss": "inferred"}


def test_what_is_no_description_is_left_out():
    known = Instrumentation()
    known.note(0, [dataclasses.replace(rank_status(0), instrumentation=text) for text in ("{", "[]", "3")])
    assert known.combined() == {}


def test_it_is_untold_from_the_first_description_until_it_was_news():
    known = Instrumentation()
    assert not known.untold
    known.note(0, [says(0, step=9, steps="inferred")])
    assert known.untold
    known.news([says(0, step=9)])
    assert not known.untold
    known.note(1, [says(0, step=0, steps="inferred")])
    assert known.untold
