"""What counts towards giving a job up, over the end of a hub."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.recovery.restarts import Restarts

COUNT = st.integers(0, 50)


@given(
    st.builds(
        Restarts,
        used=COUNT,
        idle=COUNT,
        idle_lost=st.builds(Counter, st.dictionaries(st.text(), st.integers(1, 9))),
        unexplained=COUNT,
        unexplained_s=st.sampled_from([float("-inf"), 0.0, 990.0]),
        by_node=st.dictionaries(st.text(), st.lists(st.floats(0, 1000)), max_size=3),
        failed_from=st.builds(Counter, st.dictionaries(COUNT, st.integers(1, 9))),
        unrestorable=st.sets(st.tuples(COUNT, COUNT)),
    )
)
def test_a_new_hub_counts_on_from_where_the_one_before_it_was(restarts):
    kept = restarts.kept(now_s=1000.0, now_ns=int(5000e9))
    again = Restarts.recalled(kept, now_s=20.0, now_ns=int(5010e9))
    ages = {node: [round(20.0 - at_s, 3) for at_s in times] for node, times in again.by_node.items()}
    assert ages == {n: [round(1010.0 - at_s, 3) for at_s in times] for n, times in restarts.by_node.items()}
    age_s = round(1010.0 - restarts.unexplained_s, 3)
    assert round(20.0 - again.unexplained_s, 3) == min(age_s, 5010.0)
    again.by_node, again.unexplained_s = restarts.by_node, restarts.unexplained_s
    assert again == restarts


def test_a_clock_that_was_set_back_makes_no_fault_of_the_future():
    kept = Restarts(by_node={"a": [10.0]}).kept(now_s=10.0, now_ns=int(5000e9))
    assert Restarts.recalled(kept, now_s=1.0, now_ns=int(4000e9)).by_node == {"a": [1.0]}
