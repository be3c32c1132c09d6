import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.kv.store import Compacted, Write
from pulsetrain.kv.table import HISTORY, Table

writes = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.sampled_from("12"))),
        unique_by=lambda write: write[0],
        max_size=3,
    ),
    max_size=8,
)


@settings(max_examples=30)
@given(writes)
def test_the_changes_since_any_revision_lead_to_the_present_state(commits):
    table, states = Table(), {0: {}}
    for commit in commits:
        table.commit((), [Write(key=key, value=value) for key, value in commit])
        states[table.revision] = {k: e.value for k, e in table.entries.items()}
    for revision, state in states.items():
        for change in table.changes("", revision):
            state = {**state, change.key: change.value}
        assert {k: v for k, v in state.items() if v is not None} == states[table.revision]


def test_a_watch_from_too_long_ago_is_told_so():
    table = Table()
    for _ in range(HISTORY + 1):
        table.commit((), [Write(key="a", value="1")])
    assert len(table.changes("a", 1)) == HISTORY
    with pytest.raises(Compacted):
        table.changes("a", 0)
