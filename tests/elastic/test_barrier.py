"""The barrier against arbitrary programs and schedules."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.elastic.barrier import Channel, Position, decide, waited_for
from tests.elastic.barrier_model import Model, Program

WORLD = Channel("world", (0, 1))


def parallel_job(generator, steps):
    """TP2 x PP2 x DP2: tensor pairs, sends between stages, data-parallel all-reduces, the end of a step."""
    program = Program(8)
    for _ in range(steps):
        for first in (0, 2, 4, 6):
            program.collective((first, first + 1))
        for source, target in ((0, 2), (1, 3), (4, 6), (5, 7)):
            program.send(source, target, asynchronous=(source, target) if generator.random() < 0.5 else ())
        for source, target in ((2, 0), (3, 1), (6, 4), (7, 5)):
            program.send(source, target)
        if generator.random() < 0.6:  # else gradients are accumulated, and replicas drift apart
            for one, other in ((0, 4), (1, 5), (2, 6), (3, 7)):
                program.collective(
                    (one, other), asynchronous=(one, other) if generator.random() < 0.5 else ()
                )
        for rank in range(8):
            program.wait(rank)
            program.safe(rank)
    return program


def arbitrary(generator, ranks, length):
    """Overlapping groups, sends, operations that stay open across safe points, and safe points anywhere."""
    program = Program(ranks)
    for _ in range(length):
        kind = generator.random()
        members = sorted(generator.sample(range(ranks), generator.randint(2, ranks)))
        behind = [rank for rank in members if generator.random() < 0.4]
        if kind < 0.4:
            program.collective(members, behind)
        elif kind < 0.6:
            program.send(*generator.sample(members, 2), asynchronous=behind)
        elif kind < 0.7:
            program.wait(generator.choice(members))
        elif kind < 0.85:
            program.safe(generator.choice(members))
        else:
            for rank in range(ranks):
                program.safe(rank)
    for rank in range(ranks):  # every program ends with a point at which nothing is in flight
        program.wait(rank)
        program.safe(rank)
    return program


def consistent(model):
    return all(rank.stands for rank in model.ranks) and not any(map(model.open_operations, model.ranks))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 40))
def test_any_job_is_brought_to_a_point_with_nothing_in_flight_or_runs_to_its_end(seed, ranks, length):
    generator = random.Random(seed)
    model = Model(arbitrary(generator, ranks, length), generator.randrange)
    if model.run():
        assert consistent(model)
        counts = [dict(rank.entered) for rank in model.ranks]
        for rank in model.ranks:
            for channel, count in rank.entered.items():
                assert all(counts[member].get(channel) == count for member in channel.members)
    else:  # it ended before everybody was asked
        assert not any(rank.stands for rank in model.ranks)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_three_dimensions_of_parallelism_stop_at_the_end_of_the_step_of_the_foremost_rank(seed):
    generator = random.Random(seed)
    steps = generator.randint(3, 6)
    model = Model(parallel_job(generator, steps), generator.randrange)
    if model.run():
        assert consistent(model)
        foremost = max(model.asked_at.values())
        assert max(rank.safe_points for rank in model.ranks) <= foremost + 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 30))
def test_nobody_passes_the_earliest_points_at_which_nothing_is_in_flight(seed, ranks, length):
    generator = random.Random(seed)
    program = arbitrary(generator, ranks, length)
    model = Model(program, generator.randrange)
    if not model.run():
        return
    cut = earliest(program, [model.asked_at[rank] for rank in range(ranks)])
    assert [rank.safe_points for rank in model.ranks] == cut


def earliest(program, asked_at):
    """The safe point of each rank, found by raising whoever lags until nobody does."""
    points = []
    for rank in range(program.ranks):
        counts, seen = {}, [{}]
        for kind, channel, _ in program.ops[rank]:
            if kind == "enter":
                counts[channel] = counts.get(channel, 0) + 1
            elif kind == "safe":
                seen.append(dict(counts))
        points.append(seen)
    at = [asked + 1 for asked in asked_at]
    while True:
        here = {r: Position(stands=True, entered=points[r][at[r]]) for r in range(program.ranks)}
        lagging = decide(here, range(program.ranks)).run_on
        if not lagging:
            return at
        for rank in lagging:
            at[rank] += 1


def stands(count, **more):
    return Position(stands=True, entered={WORLD: count}, **more)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ({0: stands(3)}, "rank 1 came to no end of a step"),
        ({0: stands(3), 1: stands(2)}, "operations of rank 1 are open across"),
        ({0: stands(3), 1: stands(3, complete=False)}, "rank 1 has more groups or peers"),
        ({0: stands(3, in_flight=2), 1: stands(3)}, "rank 0 waits for operations in flight"),
        ({0: stands(3), 1: stands(3)}, ""),
    ],
)
def test_it_says_what_is_waited_for(positions, words):
    assert words in waited_for(positions, (0, 1)) if words else waited_for(positions, (0, 1)) == ""
    assert decide(positions, (0, 1)).acquired == (not words)


def test_renaming_ranks_renames_who_runs_on():
    swapped = Channel("world", (1, 0))
    positions = {0: stands(3), 1: stands(2)}
    other = {1: Position(stands=True, entered={swapped: 3}), 0: Position(stands=True, entered={swapped: 2})}
    assert (decide(positions, (0, 1)).run_on, decide(other, (1, 0)).run_on) == ({1}, {0})
