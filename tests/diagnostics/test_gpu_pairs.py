"""What rates between GPUs say of each one and of each pair."""

import pytest

from pulsetrain.diagnostics.gpu_pairs import Pair, checks, pairs

GPUS = [f"GPU-{i}" for i in range(4)]


def answers(rate=lambda sender, receiver: 2e11, gpus=GPUS, **of_first):
    made = [
        {
            "ok": True,
            "gpu": gpu,
            "backend": "nccl" if gpu else "gloo",
            "busbw_bytes_per_s": 1e11,
            "rates": {str(s): rate(s, r) for s in range(len(gpus)) if s != r},
            "error": "",
        }
        for r, gpu in enumerate(gpus)
    ]
    made[0] |= of_first
    return made


def failed(made):
    return [check.name for check in checks(made) if not check.ok]


def test_every_pair_is_there_by_uuid_in_both_directions():
    found = pairs(answers(lambda s, r: 10.0 * s + r))
    assert len(found) == 12
    assert Pair(sender="GPU-2", receiver="GPU-1", bytes_per_s=21.0) in found


def test_healthy_gpus_pass_each_with_a_check_of_its_own():
    made = checks(answers())
    assert [c.name for c in made] == ["all_to_all", *(f"gpu{i}_exchange" for i in range(4))]
    assert all(c.ok for c in made)
    assert made[2].detail.startswith("GPU-1; ")


@pytest.mark.parametrize("slow", [lambda s, r: s == 2, lambda s, r: r == 2, lambda s, r: 2 in (s, r)])
def test_a_gpu_that_is_slow_with_everybody_is_named_and_no_other(slow):
    assert failed(answers(lambda s, r: 4e10 if slow(s, r) else 2e11)) == ["gpu2_exchange"]


def test_a_slow_pair_names_no_gpu_and_is_told_with_both():
    made = answers(lambda s, r: 1e9 if (s, r) == (3, 1) else 2e11)
    assert failed(made) == []
    assert checks(made)[2].detail == "GPU-1; its slowest is from GPU-3: 1.0 GB/s"
    assert checks(made)[4].detail == "GPU-3; its slowest is to GPU-1: 1.0 GB/s"


def test_with_two_joined_by_a_bridge_the_third_is_not_slow():
    made = answers(lambda s, r: 2e11 if {s, r} == {0, 1} else 2e10, GPUS[:3])
    assert failed(made) == []
    assert {c.limit for c in checks(made)} == {None}


@pytest.mark.parametrize("bridges", [[(0, 1)], [(0, 1), (2, 3)], [(0, 1), (2, 3), (4, 5)]])
@pytest.mark.parametrize("count", [4, 7, 8])
def test_where_bridges_join_some_of_the_gpus_those_without_one_are_not_slow(bridges, count):
    joined = [set(pair) for pair in bridges]
    gpus = [f"GPU-{i}" for i in range(count)]
    made = answers(lambda s, r: 2e11 if {s, r} in joined else 2e10, gpus)
    assert failed(made) == []


def test_of_eight_gpus_behind_switches_two_slow_ones_are_named():
    gpus = [f"GPU-{i}" for i in range(8)]
    made = answers(lambda s, r: 2e10 if {s, r} & {2, 5} else 2e11, gpus)
    assert failed(made) == ["gpu2_exchange", "gpu5_exchange"]


def test_an_error_is_told_with_the_gpu_that_had_it():
    made = answers(ok=False, error="wrong bytes from GPU-2")
    assert failed(made) == ["all_to_all"]
    assert checks(made)[0].detail == "GPU-0: wrong bytes from GPU-2"


def test_a_gpu_without_free_memory_fails_nobody_though_the_others_waited_for_it():
    late = {"ok": False, "error": "DistStoreError: timed out"}
    full = {"ok": False, "error": "OutOfMemoryError: CUDA out of memory."}
    (check,) = checks([late, full, late, late])
    assert (check.ok, check.busy) == (True, True)
    assert check.detail == "not measurable: member 1: OutOfMemoryError: CUDA out of memory."


def test_a_member_that_died_has_no_rates():
    made = [*answers()[:3], {"ok": False, "error": "the process died"}]
    assert checks(made)[0].detail == "member 3: the process died"
    assert len(pairs(made)) == 6


def test_processors_have_one_check_alone():
    assert [c.detail for c in checks(answers(gpus=["", ""]))] == ["gloo, 2 processes"]
