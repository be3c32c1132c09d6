"""Which GPU each member of a group takes."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.diagnostics.members import own_gpus, reason

SEEN = st.lists(st.lists(st.sampled_from("abcd"), unique=True, max_size=4), max_size=4)


def possible(visible, taken=()):
    """Whether anybody could give each member a GPU of its own, by trying all ways."""
    if not visible:
        return True
    return any(gpu not in taken and possible(visible[1:], (*taken, gpu)) for gpu in visible[0])


@given(SEEN)
def test_every_member_has_one_of_its_own_or_nobody_has_one(visible):
    given_ = own_gpus(visible)
    assert len(set(given_)) == len(given_)
    assert all(gpu in seen for gpu, seen in zip(given_, visible, strict=False))
    assert bool(given_) == (bool(visible) and possible(visible))


def test_members_that_see_the_same_gpus_take_them_in_order():
    assert own_gpus([["a", "b", "c"]] * 3) == ["a", "b", "c"]


def test_members_of_different_machines_take_the_first_of_each():
    assert own_gpus([["a", "b"], ["c", "d"]]) == ["a", "c"]


def test_a_reason_is_one_line():
    assert reason(ValueError("two\n  lines")) == "ValueError: two lines"
