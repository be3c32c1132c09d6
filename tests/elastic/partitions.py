"""Groups of unequal size, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from pulsetrain.elastic.shard_mapping import Partition, shard_mapping

degrees = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda pair: (max(pair), min(pair)))
"""A full and a reduced degree."""

mappings = st.builds(lambda units, pair: shard_mapping(units, *pair), st.integers(0, 90), degrees)


def units_of(partition: Partition) -> list[int]:
    return sorted(unit for part in partition for unit in part)


def sizes(partition: Partition) -> list[int]:
    return [len(part) for part in partition]
