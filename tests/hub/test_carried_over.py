"""What an earlier hub saw last counts until a new one has looked for itself."""

from pulsetrain.hub.carried_over import LOOKS_S, CarriedOver
from tests.hub.fakes import Clock, finding

SLOW = finding("straggler", severity="warning")
FLAP = finding("link_flap", subject="a/mlx5_0/1", severity="warning", confidence=0.99)
OVER = finding("straggler", subject="9")


def carried(clock=None):
    made = CarriedOver(clock or Clock())
    made.take([OVER, FLAP, SLOW], lambda f: f is not OVER)
    return made


def test_what_was_open_is_open_before_anybody_has_looked():
    assert carried().beside("j", 0, []) == [SLOW, FLAP]
    assert carried().beside("other", 0, []) == carried().beside("j", 1, []) == []


def test_what_is_seen_now_takes_the_place_of_what_was_recorded():
    now = finding("straggler", severity="warning", confidence=0.7)
    assert carried().beside("j", 0, [now]) == [now, FLAP]


def test_something_worse_that_begins_now_goes_first():
    hang = finding("hang", subject="5")
    assert carried().beside("j", 0, [hang]) == [hang, SLOW, FLAP]


def test_once_all_have_had_time_to_look_only_what_they_see_counts():
    clock = Clock()
    made = carried(clock)
    clock.now_s += 1000  # the job's nodes are not back yet
    assert made.beside("j", 0, []) == [SLOW, FLAP]
    made.looked("j")
    clock.now_s += LOOKS_S - 1
    made.looked("j")
    assert made.beside("j", 0, []) == [SLOW, FLAP]
    clock.now_s += 1
    assert made.beside("j", 0, [FLAP]) == [FLAP]
    assert made.beside("j", 0, []) == []
