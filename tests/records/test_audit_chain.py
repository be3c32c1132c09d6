"""A log whose records cannot be changed unseen."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.records.audit_chain import START, Head, record, verify

EVENTS = st.lists(
    st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=20), st.integers(), st.none())),
    min_size=2,
    max_size=8,
)


def log_of(events):
    lines, head = [], Head()
    for event in events:
        line, head = record(event, head)
        lines.append(line)
    return lines, head


def what(answer):
    return [problem.what for problem in answer.problems]


@given(EVENTS)
def test_a_log_that_nobody_touched_is_sound(events):
    lines, head = log_of(events)
    answer = verify(lines, noted=head.hash)
    assert (answer.records, answer.head, answer.problems) == (len(events), head, ())


@given(EVENTS, st.data())
def test_a_change_of_any_event_is_found_in_its_line(events, data):
    lines, _ = log_of(events)
    at = data.draw(st.integers(0, len(lines) - 1))
    fields = json.loads(lines[at])
    fields["event"]["added"] = 1
    lines[at] = json.dumps(fields)
    [problem] = verify(lines).problems
    assert (problem.line, problem.what) == (at + 1, "was changed after it was written")


@given(EVENTS, st.data())
def test_a_removed_an_inserted_and_a_moved_record_are_found(events, data):
    lines, _ = log_of(events)
    at = data.draw(st.integers(0, len(lines) - 2))
    for broken in (
        [*lines[:at], *lines[at + 1 :]],
        [*lines[: at + 1], lines[at], *lines[at + 1 :]],
        [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
    ):
        assert any("does not follow" in text for text in what(verify(broken)))


@given(EVENTS)
def test_a_log_that_was_cut_off_or_written_anew_does_not_hold_the_hash_that_was_noted(events):
    lines, head = log_of(events)
    assert verify(lines[:-1]).problems == ()
    assert "the end was removed" in what(verify(lines[:-1], noted=head.hash))[0]
    anew, _ = log_of([*events[:-1], {"kind": "nothing happened"}])
    assert "written anew" in what(verify(anew, noted=head.hash))[0]


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_text_gives_an_answer(lines):
    answer = verify(lines)
    assert len(answer.problems) >= answer.records == 0
    assert answer.head == Head(seq=-1, hash=START)
