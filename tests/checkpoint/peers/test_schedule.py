"""The chunk schedule's laws, and the idle profile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.peers.schedule import (
    Network,
    chunk_schedule,
    iterations_for,
    overflow_s,
    profile_idle,
    steps_between,
)
from pulsetrain.core.errors import UsageError

networks = st.builds(
    Network,
    alpha_s=st.floats(0, 0.01),
    beta_bytes_per_s=st.floats(1e3, 1e9),
    safety=st.floats(0.1, 0.95),
)
spans = st.lists(st.floats(0, 2), min_size=1, max_size=8)


@given(spans, st.integers(0, 10**6), networks, st.integers(1024, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_no_span_is_exceeded_and_every_byte_is_sent_once_to_each_replica(
    spans_s, size, network, buffer_bytes, buffers, replicas
):
    # a part of less than size/2000 would only make the test slow
    buffer_bytes = max(buffer_bytes, size // 500)
    chunks = chunk_schedule(
        spans_s, size, network=network, buffer_bytes=buffer_bytes, buffers=buffers, replicas=replicas
    )
    for copy in range(1, replicas):
        assert sum(c.bytes for c in chunks if c.copy == copy) == size
    assert {c.copy for c in chunks} <= set(range(1, replicas))
    assert all(0 < c.bytes <= buffer_bytes // buffers for c in chunks)
    assert [(c.span, c.copy) for c in chunks] == sorted((c.span, c.copy) for c in chunks)
    for span, idle in enumerate(spans_s[:-1]):
        busy = sum(network.seconds(c.bytes) for c in chunks if c.span == span)
        assert busy <= network.safety * idle + 1e-9
    assert overflow_s(chunks, spans_s, network) >= 0


def test_what_fits_stays_out_of_the_last_span():
    network = Network(alpha_s=0.0, beta_bytes_per_s=100.0, safety=0.5)
    chunks = chunk_schedule([4.0, 4.0, 1.0], 300, network=network, buffer_bytes=200, buffers=2, replicas=2)
    assert {c.span for c in chunks} == {0, 1}
    assert overflow_s(chunks, [4.0, 4.0, 1.0], network) == 0


def test_overflow_is_amortised_by_saving_less_often():
    network = Network(alpha_s=0.0, beta_bytes_per_s=100.0, safety=0.5)
    chunks = chunk_schedule([1.0], 250, network=network, buffer_bytes=200, buffers=2, replicas=2)
    over = overflow_s(chunks, [1.0], network)
    assert over == pytest.approx(2.0)
    assert steps_between(over, 10.0, limit=0.01) == 20
    assert steps_between(0.0, 10.0) == 1


def test_bad_input_is_named():
    network = Network(alpha_s=0.0, beta_bytes_per_s=100.0)
    with pytest.raises(UsageError, match="schedule"):
        chunk_schedule([], 10, network=network, buffer_bytes=8, buffers=2, replicas=2)
    with pytest.raises(UsageError, match="safety"):
        Network(alpha_s=0.0, beta_bytes_per_s=1.0, safety=1.0)


def test_the_idle_profile_takes_the_gaps_between_collectives():
    ms = 1_000_000
    usual = [(0, 10 * ms), (5 * ms, 12 * ms), (22 * ms, 30 * ms), (50 * ms, 60 * ms)]
    other = [(s + 7, e + 7) for s, e in usual]
    odd = [(0, ms), (9 * ms, 10 * ms)]  # an evaluation
    profile = profile_idle([usual, other, odd, usual])
    assert profile.spans_s == pytest.approx((0.010, 0.020))
    assert profile.steady
    assert profile_idle([]) is None
    assert profile_idle([odd]) is None


def test_an_irregular_job_is_not_steady():
    ms = 1_000_000
    profile = profile_idle([[(0, ms), (g * ms, (g + 1) * ms)] for g in (5, 50, 9)])
    assert not profile.steady


def test_one_iteration_with_a_hiccup_leaves_a_job_steady():
    ms = 1_000_000
    iterations = [[(0, ms), (g * ms, (g + 1) * ms)] for g in (50, 51, 49, 50, 180, 50, 51)]
    profile = profile_idle(iterations)
    assert profile.steady
    assert profile.spans_s == pytest.approx((0.049,))


@given(st.integers(1, 1 << 26), st.floats(0.001, 0.1))
def test_so_many_iterations_are_enough_and_one_less_is_not(size, idle):
    net = Network(alpha_s=1e-5, beta_bytes_per_s=1e9, safety=0.8)
    options = {"network": net, "buffer_bytes": 4 << 20, "buffers": 1, "replicas": 2}
    count = iterations_for([idle], size, **options)
    assert overflow_s(chunk_schedule([idle] * count, size, **options), [idle] * count, net) <= 1e-9
    if count > 1:
        fewer = [idle] * (count - 1)
        assert overflow_s(chunk_schedule(fewer, size, **options), fewer, net) > 0
