"""How long the collectives of each process group take, as a matrix, and which groups can be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ALIKE = 1.25  # payloads of siblings, ordered by size, differ by less than this ratio from one to the next


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """Nanoseconds per byte [step, series]. NaN where a group did nothing.

    A series is one phase of one group. Its entries in `groups`, `phases` and `siblings` name it. Series with
    the same number in `siblings` can be compared.
    """

    steps: NDArray[np.int64]
    groups: tuple[str, ...]
    phases: tuple[str, ...]
    siblings: NDArray[np.int64]
    ns_a_byte: NDArray[np.float64]


def transfers_from(table: pa.Table) -> Transfers:
    """The matrix from a table of `analysis.group_transfers`, rows in any order.

    Siblings are groups of one kind (their name without its numbers) and size that run one operation on about
    as many bytes, because a small payload takes longer for each byte.
    """
    rows = table.to_pydict()
    keys = list(zip(rows["group"], rows["phase"], strict=True))
    members: dict[tuple[str, str], int] = {}
    for key, count in zip(keys, rows["members"], strict=True):
        members[key] = max(count, members.get(key, 0))
    series = sorted(members)
    steps = np.unique(np.array(rows["step"], np.int64))
    column_of = {key: i for i, key in enumerate(series)}
    matrix, payload = (np.full((len(steps), len(series)), np.nan) for _ in range(2))
    if series:
        column = np.array([column_of[key] for key in keys], np.int64)
        row = np.searchsorted(steps, np.array(rows["step"], np.int64))
        payload[row, column] = np.maximum(1, np.array(rows["bytes"], float))
        matrix[row, column] = np.array(rows["transfer_ns"], float) / payload[row, column]
    kinds = [(_kind(group), phase, members[group, phase]) for group, phase in series]
    return Transfers(
        steps=steps,
        groups=tuple(group for group, _ in series),
        phases=tuple(phase for _, phase in series),
        siblings=_siblings(kinds, payload),
        ns_a_byte=matrix,
    )


def _kind(group: str) -> str:
    """A group's name without its numbers: "dp" of "dp:3"."""
    return re.sub(r"([\W_]*\d+)+$", "", group)


def _siblings(kinds: Sequence[tuple[str, str, int]], payload: NDArray[np.float64]) -> NDArray[np.int64]:
    """A number for each series, the same for one kind and about the same payload in the usual step."""
    usual = np.nanmedian(payload, axis=0) if len(payload) else np.ones(len(kinds))
    order = sorted(range(len(kinds)), key=lambda i: (kinds[i], usual[i]))
    numbers, number = np.zeros(len(kinds), np.int64), 0
    for before, after in pairwise(order):
        number += kinds[before] != kinds[after] or usual[after] >= ALIKE * usual[before]
        numbers[after] = number
    return numbers
