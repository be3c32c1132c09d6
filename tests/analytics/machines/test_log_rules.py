"""Who is to blame for an exit, as a distribution."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.machines.log_rules import CLASSES, classify, rule_of, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.name)
def test_every_rule_decides_over_its_sample(rule):
    likely = classify([rule.sample])
    assert [name for name, _ in likely.reasons] == [rule.name]
    assert sum(likely.shares.values()) == pytest.approx(1)
    assert set(likely.shares) == set(CLASSES)
    assert rule.source


def test_a_symptom_is_not_its_cause():
    memory = classify(["RuntimeError: CUDA error: an illegal memory access was encountered"])
    assert 0.2 < memory.shares["infrastructure"] < 0.4
    assert memory.likeliest == "user"
    assert classify(["CUDA error: uncorrectable ECC error encountered"]).shares["infrastructure"] > 0.9
    assert classify(["KeyError: 'input_ids'"]).likeliest == "user"


def test_where_the_exception_was_raised_counts():
    line = "ValueError: bad"
    ours = classify(['  File "/home/me/train.py", line 7, in step', line])
    theirs = classify(['  File "/venv/lib/python3.11/site-packages/torch/nn/x.py", line 7, in forward', line])
    assert ours.shares["user"] > theirs.shares["user"]


def test_a_line_that_says_a_peer_died_points_elsewhere():
    likely = classify(
        ["RuntimeError: [../gloo/transport/tcp/pair.cc] Connection closed by peer [10.0.0.2]:1234"]
    )
    assert likely.consequence
    both = classify(["Connection closed by peer", "KeyError: 'x'"])
    assert not both.consequence
    assert both.likeliest == "user"


def test_without_lines_the_signal_or_the_prior_speaks():
    assert classify([], -9).reasons == (("exit: killed", ""),)
    assert classify([], -7).likeliest == "infrastructure"
    assert classify([], 1).reasons == ()
    assert sum(classify([]).shares.values()) == pytest.approx(1)


@given(st.lists(st.text(max_size=80), max_size=10), st.integers(-64, 255))
def test_any_lines_give_a_distribution(lines, code):
    shares = classify(lines, code).shares
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in shares.values())


@pytest.mark.parametrize(
    "said",
    [
        "Error: failed to extend /dev/shm/nccl-H1dBqY to 9637892 bytes, error: No space left on device (28)",
        "Error while creating shared memory segment /dev/shm/nccl-H1dBqY (size 9637888)",
        "Error while creating shared memory segment nccl-shm-recv-1462445a6f01cbfc-1-2-3 (size 9637888)",
    ],
)
def test_nccl_that_has_too_little_shared_memory_is_known(said):
    assert rule_of(f"n1:16:22 [0] misc/shmutils.cc:88 NCCL WARN {said}") == "shared_memory"


def test_shared_memory_that_is_full_is_no_disk_that_is_full():
    said = "RuntimeError: unable to write to file </torch_9_1_0>: No space left on device (28)"
    assert [name for name, _ in classify([said]).reasons] == ["shared_memory"]


def test_the_deepest_rule_names_a_line():
    assert rule_of("nothing of interest") == ""
    for rule in rules():
        assert rule_of(rule.sample) == rule.name


@pytest.mark.parametrize("word", ["hdfs://data/part ", "s3://data/part ", "NCCL.", "nvlink."])
def test_a_line_that_goes_on_and_on_holds_nobody_up(word):
    """As an exception that names all the files of a data set."""
    line = "KeyError: " + word * (16_000 // len(word))
    began_s = time.process_time()
    assert classify([line]).likeliest == "user"
    assert time.process_time() - began_s < 1.0
