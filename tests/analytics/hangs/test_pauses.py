"""The longest silences that ended by themselves, by place."""

from pulsetrain.analytics.hangs.pauses import MOST_PLACES, PauseLog

S = 10**9


def silence(log, seconds, place=""):
    for at_s in range(1, seconds + 1):
        log.note(at_s * S, place)
    log.note(0, "")


def test_the_longest_silence_of_each_place_is_kept():
    log = PauseLog()
    for seconds, place in ((20, "evaluate"), (90, "evaluate"), (30, "evaluate"), (5, "save")):
        silence(log, seconds, place)
    assert log.longest_ns == {"evaluate": 90 * S, "save": 5 * S}


def test_only_a_silence_that_is_longer_than_those_before_it_is_news():
    log = PauseLog()
    news = []
    for seconds in (20, 90, 30, 91, 1):
        silence(log, seconds - 1, "evaluate")
        log.note(seconds * S, "evaluate")
        news.append(log.note(0, ""))
    assert news == [True, True, False, True, False]


def test_the_most_precise_place_counts():
    log = PauseLog()
    log.note(2 * S, "")
    log.note(3 * S, "phase data")
    log.note(4 * S, "evaluate (train.py:88)")
    log.note(5 * S, "")
    log.note(0, "")
    assert log.longest_ns == {"evaluate (train.py:88)": 5 * S}


def test_a_silence_that_only_seems_to_get_shorter_goes_on():
    log = PauseLog()
    for stall_ns in (10 * S, 10 * S - 5, 20 * S, 18 * S, 30 * S):
        log.note(stall_ns, "lock")
    assert log.longest_ns == {}
    log.note(S, "")
    assert log.longest_ns == {"lock": 30 * S}


def test_a_silence_that_a_restart_ended_teaches_nothing():
    log = PauseLog()
    log.note(50 * S, "evaluate")
    log.forget()
    log.note(0, "")
    assert log.longest_ns == {}


def test_a_short_silence_and_too_many_places_are_left_out():
    log = PauseLog()
    silence(log, 1, "step")
    for number in range(MOST_PLACES + 10):
        silence(log, 3, str(number))
    assert len(log.longest_ns) == MOST_PLACES
