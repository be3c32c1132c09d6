"""Chunks go into idle spans, whatever the spans and the clock; the profile is learnt from real records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.peers import interleave
from pulsetrain.checkpoint.peers.interleave import (
    LEAST_CHUNK,
    PAUSE_S,
    QUIET_WAIT_S,
    Interleaver,
    Profiler,
)
from pulsetrain.checkpoint.peers.schedule import IdleProfile
from pulsetrain.records.columns import Columns
from pulsetrain.records.schema import RECORDS

MS = 1_000_000
RATE = 1e9  # bytes a second, as an interleaver assumes at first


class Training:
    """Steps of a fixed length with collectives at fixed places, on a clock that only sleeping moves."""

    def __init__(self, step_ms: int = 100, busy: tuple[tuple[int, int], ...] = ()) -> None:
        self.now_ns = 1000 * MS + 1
        self.step_ms, self.busy = step_ms, busy

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    @property
    def step_start_ns(self) -> int:
        return self.now_ns // (self.step_ms * MS) * self.step_ms * MS

    @property
    def offset_s(self) -> float:
        return (self.now_ns - self.step_start_ns) / 1e9

    @property
    def communicating(self) -> bool:
        return any(a <= self.offset_s * 1000 < b for a, b in self.busy)


def interleaver(training: Training, chunk: int = 1 << 20, **options) -> Interleaver:
    made = Interleaver(chunk_bytes=chunk, clock=training.clock, sleep=training.sleep, **options)
    made.follow([training])
    return made


def profile(step_s: float, spans: list[tuple[float, float]], spread: float = 0.01) -> IdleProfile:
    return IdleProfile(
        starts_s=tuple(s for s, _ in spans),
        spans_s=tuple(n for _, n in spans),
        step_s=step_s,
        spread=spread,
    )


def sent(pacer: Interleaver, training: Training, total: int) -> list[tuple[float, int]]:
    """(offset in the step, size) of every chunk; sending takes what the interleaver thinks it takes."""
    out = []
    for size in pacer.chunks(total):
        if size:
            out.append((training.step_start_ns, training.offset_s, size))
            training.now_ns += int(size / RATE * 1e9) + 50_000
    return out


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 60 << 20),
    st.integers(LEAST_CHUNK, 8 << 20),
)
def test_every_byte_goes_once_and_inside_an_idle_span(parts, total, chunk):
    spans, at = [], 0.0
    for gap, length in parts:  # in ms; spans do not overlap
        at += gap / 1000
        spans.append((at, length / 1000))
        at += length / 1000
    training = Training()
    pacer = interleaver(training, chunk)
    pacer.learn(profile(0.1, spans))
    chunks = sent(pacer, training, total)
    assert sum(size for _, _, size in chunks) == total
    used: dict[tuple[int, int], float] = {}
    for step, offset, size in chunks:
        inside = [i for i, (s, n) in enumerate(spans) if s <= offset < s + n]
        assert inside, f"{offset} is in no idle span of {spans}"
        key = step, inside[0]
        used[key] = used.get(key, 0.0) + size / RATE + 5e-5
        assert offset + size / RATE <= sum(spans[inside[0]]) + 1e-9
    assert all(seconds <= 0.8 * spans[span][1] + 1e-9 for (_, span), seconds in used.items())


def test_what_does_not_fit_into_one_step_goes_into_the_next_ones():
    training = Training()
    pacer = interleaver(training)
    pacer.learn(profile(0.1, [(0.02, 0.010)]))
    steps = {step for step, _, _ in sent(pacer, training, 20 << 20)}  # 8 ms, so 8 MB, a step
    assert len(steps) == 3
    plan = pacer.plan(profile(0.1, [(0.02, 0.010)]), 20 << 20, 2)
    assert plan.every_steps == 3
    assert plan.overflow_s == pytest.approx(20 * 2**20 / RATE + 20 * 5e-5 - 0.008, rel=1e-3)


def test_without_a_profile_a_chunk_waits_a_little_for_a_quiet_moment():
    training = Training(busy=((0, 10),))
    pacer = interleaver(training)
    ((_, offset, _),) = sent(pacer, training, 1000)
    assert 0.010 <= offset < 0.010 + 2 * PAUSE_S
    always = Training(busy=((0, 100),))
    begun = always.now_ns
    sent(interleaver(always), always, 1000)
    assert always.now_ns - begun < 2 * QUIET_WAIT_S * 1e9


def test_the_first_transfer_says_what_the_network_gives_and_slower_ones_weigh_more_than_faster():
    pacer = Interleaver(chunk_bytes=1 << 20)
    pacer.record_transfer(1 << 20, 0.01)
    first = pacer.network.beta_bytes_per_s
    assert first == pytest.approx((1 << 20) / 0.01)
    pacer.record_transfer(1 << 20, 0.04)  # its peers send too
    shared = pacer.network.beta_bytes_per_s
    assert shared < 0.7 * first
    pacer.record_transfer(1 << 20, 0.01)
    assert shared < pacer.network.beta_bytes_per_s < 0.7 * first


def test_an_unsteady_profile_is_not_used():
    training = Training()
    pacer = interleaver(training)
    pacer.learn(profile(0.1, [(0.09, 0.01)], spread=0.5))
    ((_, offset, _),) = sent(pacer, training, 1000)
    assert offset < 0.001


@pytest.mark.parametrize("stands", ["nobody trains", "the step hangs"])
def test_chunks_go_at_once_while_training_stands_still(stands):
    training = Training(step_ms=10_000)
    pacer = interleaver(training)
    pacer.learn(profile(0.1, [(0.09, 0.01)]))
    if stands == "nobody trains":
        pacer.follow([])
    training.now_ns += 5_000 * MS
    begun = training.now_ns
    assert sum(s for _, _, s in sent(pacer, training, 5 << 20)) == 5 << 20
    assert training.now_ns - begun < 50 * MS


def test_a_chunk_that_fits_nowhere_goes_after_a_step_and_a_half():
    training = Training()
    pacer = interleaver(training)
    pacer.learn(profile(0.1, [(0.05, 1e-5)]))
    begun = training.now_ns
    assert sum(s for _, _, s in sent(pacer, training, 1 << 20)) == 1 << 20
    assert 140 * MS < training.now_ns - begun < 170 * MS


def test_transfers_that_take_long_make_the_chunks_smaller():
    training = Training()
    pacer = interleaver(training)
    for _ in range(60):
        pacer.record_transfer(1 << 20, 0.010)  # 100 MB/s
    assert pacer.network.beta_bytes_per_s == pytest.approx(1.05e8, rel=0.05)
    assert pacer.plan(profile(0.1, [(0.02, 0.010)]), 20 << 20, 2).every_steps > 20


def rows(record: str, columns: dict[str, list]) -> Columns:
    """Rows as a drained ring gives them; what is not given holds its field's default."""
    count = len(next(iter(columns.values())))
    given = {f.name: columns.get(f.name, f.default) for f in RECORDS[record].fields}
    return Columns.from_values(record, count, given)


def record_steps(profiler: Profiler, steps: int, jitter=lambda step: 0) -> bool:
    """Two ranks, steps of 100 ms: collectives from 0 to 20 and from 60 to 95 ms, an evaluation in step 9."""
    done = False
    for step in range(steps):
        begin = 10**18 + step * 100 * MS
        spans = [(0, 12), (10, 10), (60, 35)] if step != 9 else [(0, 100)]
        some = {
            "rank": [i % 2 for i in range(len(spans))],
            "step": [step] * len(spans),
            "category": ["communication"] * len(spans),
            "open": [False] * len(spans),
            "start": [begin + (a + jitter(step) * (a > 0)) * MS for a, _ in spans],
            "duration_ns": [n * MS for _, n in spans],
        }
        profiler.observe(rows("spans", some))
        ends = {
            "rank": [0, 1],
            "step": [step, step],
            "start": [begin, begin],
            "duration_ns": [100 * MS, 99 * MS],
        }
        done = profiler.observe(rows("steps", ends)) or done
    return done


def test_the_profile_is_learnt_from_what_ranks_record():
    profiler = Profiler(8)
    assert record_steps(profiler, 14)
    assert profiler.done
    assert profiler.profile.starts_s == pytest.approx((0.020, 0.095))
    assert profiler.profile.spans_s == pytest.approx((0.040, 0.005))
    assert profiler.profile.step_s == pytest.approx(0.1)
    assert profiler.profile.steady


def test_an_irregular_job_gets_no_steady_profile():
    profiler = Profiler(8)
    assert record_steps(profiler, 14, jitter=lambda step: step * 7 % 30)
    assert profiler.profile is None or not profiler.profile.steady


def test_the_profile_waits_for_whole_steps_of_every_rank():
    profiler = Profiler(8)
    assert not record_steps(profiler, 11)
    assert profiler.profile is None
    assert Profiler(0).done


def test_a_chunk_waits_for_a_collective_that_runs_in_a_learnt_gap():
    training = Training(busy=((20, 30),))
    pacer = interleaver(training)
    pacer.learn(profile(0.1, [(0.02, 0.040)]))
    ((_, offset, _),) = sent(pacer, training, 1 << 20)
    assert 0.030 <= offset < 0.030 + 2 * PAUSE_S
    always = Training(busy=((0, 100),))
    pacer = interleaver(always)
    pacer.learn(profile(0.1, [(0.02, 0.040)]))
    begun = always.now_ns
    assert sum(size for _, _, size in sent(pacer, always, 1 << 20)) == 1 << 20
    assert always.now_ns - begun < 150 * MS


def collectives(step: int, count: int, rank: int = 0) -> Columns:
    same = {
        "rank": rank,
        "step": step,
        "category": "communication",
        "open": False,
        "start": 7,
        "duration_ns": 5,
    }
    return rows("spans", {name: [value] * count for name, value in same.items()})


def test_collectives_without_steps_take_no_more_memory_than_a_bound(monkeypatch):
    monkeypatch.setattr(interleave, "MOST_SPANS", 1000)
    profiler = Profiler(8)
    told = [profiler.observe(collectives(0, 100)) for _ in range(100)]
    assert told.count(True) == 1
    assert profiler.done
    assert profiler.profile is None
    assert sum(len(spans) for spans in profiler._spans.values()) == 0


def test_ranks_that_ran_here_before_are_not_waited_for():
    profiler = Profiler(8, ranks=[0, 1])
    late = {"rank": [5, 6], "step": [3, 3], "start": [7, 7], "duration_ns": [5, 5]}
    profiler.observe(rows("steps", late))
    profiler.observe(collectives(3, 9, rank=5))
    assert record_steps(profiler, 14)
    assert profiler.profile.spans_s == pytest.approx((0.040, 0.005))
