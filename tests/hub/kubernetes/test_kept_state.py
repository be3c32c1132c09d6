import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData, Unavailable
from pulsetrain.hub.kubernetes.kept_state import DELETIONS, LARGEST, KeptState
from pulsetrain.kv.store import Compacted, Write

WRITES = st.lists(
    st.builds(
        Write, key=st.sampled_from("abc"), value=st.none() | st.text(max_size=3), lease=st.integers(0, 2**48)
    ),
    max_size=3,
    unique_by=lambda write: write.key,
)


@given(st.lists(WRITES, max_size=8))
def test_what_was_committed_is_read_again(commits):
    state = KeptState.empty(revision=7)
    for writes in commits:
        state.commit((), writes)
    again = KeptState.decode(state.encode(), "ConfigMap x")
    assert again.table.entries == state.table.entries
    assert (again.table.revision, again.deletions) == (state.table.revision, state.deletions)
    assert again.changes("", 7) == state.changes("", 7)


def test_a_watch_that_is_too_late_is_told_so():
    state = KeptState.empty(revision=0)
    for number in range(DELETIONS + 1):
        state.commit((), [Write(key="a", value=str(number))])
        state.commit((), [Write(key="a", value=None)])
    with pytest.raises(Compacted):
        state.changes("a", after=1)
    assert [c.value for c in state.changes("a", after=state.table.revision - 1)] == [None]


def test_a_state_that_no_config_map_holds_is_refused_with_its_size():
    state = KeptState.empty(revision=0)
    state.commit((), [Write(key="a", value="é" * (LARGEST // 2))])
    with pytest.raises(Unavailable, match=r"the state has 1048\d\d\d bytes, and a ConfigMap holds 1048576"):
        state.encode()


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, '{"format": 2}', '{"format": 1}'])
def test_a_damaged_state_is_one_line(text):
    with pytest.raises(CorruptData, match="ConfigMap x"):
        KeptState.decode(text, "ConfigMap x")
