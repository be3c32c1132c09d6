"""An answer that takes long to put together is given out again."""

from pulsetrain.hub.routes.kept_json import KeptJson
from tests.hub.fakes import Clock


def test_an_answer_that_takes_long_is_given_out_again_and_a_quick_one_is_new_each_time():
    clock, made = Clock(), []

    def slow():
        clock.now_s += 0.1 * (len(made) == 0)
        made.append(1)
        return {"number": len(made)}

    kept = KeptJson(slow, clock)
    assert [kept.text(), kept.text()] == [b'{"number":1}'] * 2
    clock.now_s += 0.89
    assert kept.text() == b'{"number":1}'
    clock.now_s += 0.02
    assert [kept.text(), kept.text()] == [b'{"number":2}', b'{"number":3}']


def test_after_something_was_done_the_answer_is_new():
    clock, made = Clock(), []

    def slow():
        clock.now_s += 0.1
        made.append(1)
        return len(made)

    kept = KeptJson(slow, clock)
    assert [kept.text(), kept.text()] == [b"1", b"1"]
    kept.forget()
    assert kept.text() == b"2"
