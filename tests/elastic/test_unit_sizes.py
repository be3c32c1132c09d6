"""How many nodes each replica has."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.elastic.unit_sizes import unit_sizes

numbers = st.integers(1, 12)


@given(st.integers(0, 60), numbers, numbers)
def test_every_node_is_in_a_unit_of_an_allowed_size_and_they_differ_by_one(nodes, unit, least):
    least = min(least, unit)
    sizes = unit_sizes(nodes, unit, least)
    if sizes:
        assert sum(sizes) == nodes
        assert least <= min(sizes) <= max(sizes) <= unit
        assert max(sizes) - min(sizes) <= 1
        assert sizes == tuple(sorted(sizes, reverse=True))
    else:
        units = -(-nodes // unit)
        assert nodes == 0 or nodes < units * least


@given(st.integers(0, 60), numbers)
def test_units_that_must_be_whole_need_a_multiple(nodes, unit):
    assert bool(unit_sizes(nodes, unit, unit)) == (nodes > 0 and nodes % unit == 0)
