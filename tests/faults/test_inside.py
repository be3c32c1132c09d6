"""Faults that a process does to itself: values in this process, the rest in real ones."""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import time

import pytest
import torch

from pulsetrain.faults import inside, outside, plan
from pulsetrain.faults.inside import InjectedError, Injector
from pulsetrain.faults.plan import Fault

LOOP = """
import sys, time
from pulsetrain.faults.inside import Injector
faults = Injector.from_environ()
for step in range(6):
    faults.at(step, "data")
    faults.at(step, "forward")
    print(step, flush=True)
"""


def injector(*faults: Fault, rank: int = 1, attempt: int = 0) -> Injector:
    return Injector(faults, rank=rank, attempt=attempt)


def start(*faults: Fault, rank: int = 1, attempt: int = 0) -> subprocess.Popen[str]:
    env = os.environ | {
        "RANK": str(rank),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        plan.ENVIRONMENT: plan.dump(faults),
    }
    return subprocess.Popen(
        [sys.executable, "-c", LOOP], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_fault_strikes_once_at_its_place():
    faults = injector(Fault(kind="exception", rank=1, step=2, phase="forward", text="boom"))
    for step in (0, 1, 2, 3):
        faults.at(step, "data")
        if step != 2:
            faults.at(step, "forward")
    with pytest.raises(InjectedError, match="boom"):
        faults.at(2, "forward")
    faults.at(2, "forward")


@pytest.mark.parametrize(("rank", "attempt"), [(0, 0), (1, 1)])
def test_other_ranks_and_attempts_are_spared(rank, attempt):
    injector(Fault(kind="exception", rank=1, step=0), rank=rank, attempt=attempt).at(0)


def test_a_broken_machine_strikes_in_every_attempt():
    with pytest.raises(InjectedError, match="injected at step 0"):
        injector(Fault(kind="exception", rank=1, step=0, attempt=-1), attempt=7).at(0)


def test_values_are_damaged_in_their_steps_only():
    faults = injector(
        Fault(kind="nan", rank=1, step=3),
        Fault(kind="loss_spike", rank=1, step=5, until=6, factor=4.0),
        Fault(kind="inf", rank=1, step=8),
    )
    losses = [faults.value(step, 2.0) for step in range(9)]
    assert math.isnan(losses[3])
    assert losses[:3] + losses[4:] == [2.0, 2.0, 2.0, 2.0, 8.0, 8.0, 2.0, math.inf]


def test_a_tensor_is_damaged_in_place_and_stays_finite_after_a_bit_flip():
    gradient = torch.ones(2, 3, requires_grad=True)
    same = injector(Fault(kind="bit_flip", rank=1, step=0)).value(0, gradient)
    assert same is gradient
    assert gradient.isfinite().all()
    assert (gradient != 1).sum() == 1


def test_a_flipped_bit_flips_back():
    assert inside.flip_exponent_bit(inside.flip_exponent_bit(3.25)) == 3.25


def test_work_is_stretched_in_the_planned_steps_and_no_other_place_sees_it():
    faults = injector(Fault(kind="slow", rank=1, step=3, until=5, factor=1.5))
    assert [faults.stretch(step) for step in range(2, 7)] == [1.0, 1.5, 1.5, 1.5, 1.0]
    faults.at(4, "forward")
    assert faults.value(4, 2.0) == 2.0


def test_uneven_lengths_differ_by_step_and_are_shared_by_those_of_one_number():
    plans = [Fault(kind="uneven", rank=r, step=0, until=99, factor=0.3, code=r // 2) for r in range(4)]
    drawn = [[injector(plan, rank=plan.rank).stretch(step) for step in range(100)] for plan in plans]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    logs = [math.log(length) for length in drawn[0] + drawn[2]]
    assert 0.2 < statistics.stdev(logs) < 0.4
    assert abs(statistics.mean(logs)) < 0.1


def test_delayed_sends_last_as_long_as_planned():
    import torch.distributed as dist

    original = dist.isend
    faults = injector(Fault(kind="slow_link", rank=1, step=1, until=2, seconds=0.001))
    faults.at(0)
    assert dist.isend is original
    faults.at(1)
    assert dist.isend is not original
    faults.at(2)
    assert dist.isend is not original
    faults.at(3)
    assert dist.isend is original


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (Fault(kind="exit", rank=1, step=3, code=7), 7, ""),
        (Fault(kind="exception", rank=1, step=3), 1, "InjectedError: injected at step 3"),
        (Fault(kind="cuda_error", rank=1, step=3), 1, "CUDA error: an illegal memory access"),
        (Fault(kind="abort", rank=1, step=3), -signal.SIGABRT, ""),
        (Fault(kind="segfault", rank=1, step=3), -signal.SIGSEGV, ""),
        (Fault(kind="sigkill", rank=1, step=3), -signal.SIGKILL, ""),
        (Fault(kind="sigterm", rank=1, step=3), -signal.SIGTERM, ""),
        (Fault(kind="out_of_memory", rank=1, step=3), 1, "MemoryError"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_a_process_ends_as_planned(fault, code, text):
    process = start(fault)
    out, err = process.communicate(timeout=110)
    assert process.returncode == code
    assert out.split() == ["0", "1", "2"]
    assert text in err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "state"), [("sigstop", "T"), ("hang", "S"), ("busy", "R"), ("hold_gil", "S")]
)
def test_a_process_stays_as_planned(kind, state):
    process = start(Fault(kind=kind, rank=1, step=2, seconds=50))
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        deadline = time.monotonic() + 40
        while outside.state_of(process.pid) != state and time.monotonic() < deadline:
            time.sleep(0.01)
        assert outside.state_of(process.pid) == state
    finally:
        process.kill()
        process.communicate()


@pytest.mark.integration
def test_time_is_lost_in_the_planned_steps():
    began = time.perf_counter()
    process = start(
        Fault(kind="sleep", rank=1, step=1, until=3, seconds=0.1),
        Fault(kind="gc_pause", rank=1, step=4, seconds=0.1),
    )
    out, _ = process.communicate(timeout=110)
    assert out.split() == [str(i) for i in range(6)]
    assert time.perf_counter() - began > 0.4


@pytest.mark.integration
def test_writing_beyond_the_limit_fails(tmp_path):
    code = (
        "from pulsetrain.faults.inside import Injector; import sys\n"
        "Injector.from_environ().at(0)\n"
        "open(sys.argv[1], 'wb', buffering=0).write(b'x' * 100)\n"
        "open(sys.argv[1], 'ab', buffering=0).write(b'x' * 100)\n"
    )
    env = os.environ | {"RANK": "0"}
    env[plan.ENVIRONMENT] = plan.dump([Fault(kind="file_limit", rank=0, step=0, size_bytes=100)])
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=110)
    assert "File too large" in done.stderr
    assert (tmp_path / "file").stat().st_size == 100


@pytest.mark.integration
def test_a_child_is_killed():
    code = (
        "import subprocess, sys\n"
        "from pulsetrain.faults.inside import Injector\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "Injector.from_environ().at(0)\n"
        "sys.exit(-child.wait())\n"
    )
    env = os.environ | {"RANK": "0", plan.ENVIRONMENT: plan.dump([Fault(kind="kill_child", rank=0, step=0)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=110)
    assert done.returncode == signal.SIGKILL
