"""A rank's exit in words."""

from __future__ import annotations

from pulsetrain.protocol.exits import exit_text, last_error


def test_the_last_line_that_looks_like_an_exception_is_quoted():
    assert last_error(["torch.OutOfMemoryError: full", "see the docs", ""]) == "torch.OutOfMemoryError: full"
    assert last_error(["one", "two", " "]) == "two"
    assert last_error([]) == ""


def test_an_unknown_signal_keeps_its_number():
    assert exit_text(-200) == "signal 200"


def test_a_fatal_signal_is_told_with_the_place_of_the_thread_that_got_it():
    lines = [
        "step 7 loss 2.1",
        "Fatal Python error: Segmentation fault",
        "Thread 0x00007f01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait',
        "Current thread 0x00007f02 (most recent call first):",
        '  File "/jobs/kernels.py", line 31 in fused',
        '  File "/jobs/train.py", line 8 in <module>',
        "Extension modules: numpy._core._multiarray_umath, torch._C (total: 21)",
    ]
    assert last_error(lines) == "Fatal Python error: Segmentation fault (kernels.py:31 in fused)"


def test_a_thrown_exception_says_more_than_the_abort_that_it_causes():
    lines = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  CUDA error: an illegal memory access was encountered",
        "Fatal Python error: Aborted",
        "Thread 0x00007f01 (most recent call first):",
        "  <no Python frame>",
    ]
    assert last_error(lines) == "CUDA error: an illegal memory access was encountered"


def test_a_cut_dump_of_threads_does_not_stand_for_the_error():
    lines = ["out of shared memory", '  File "/jobs/train.py", line 8 in <module>', "Extension modules: a, b"]
    assert last_error(lines) == "out of shared memory"


def test_an_exception_after_a_dump_is_the_newer_error():
    lines = ["Fatal Python error: Aborted", "ValueError: the second start failed"]
    assert last_error(lines) == "ValueError: the second start failed"


def test_what_a_killed_process_said_last_is_no_reason_unless_it_is_an_exception():
    assert last_error(["Learning rate set to 6.3e-05"], -9) == ""
    assert last_error(["MemoryError: 3 GiB", "see the docs"], -9) == "MemoryError: 3 GiB"
    assert last_error(["double free or corruption (!prev)"], -6) == "double free or corruption (!prev)"
