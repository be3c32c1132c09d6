"""What kind of machine this is."""

from __future__ import annotations

import pytest

from pulsetrain.diagnostics.machine_kind import describe, features


def test_processor_cores_and_gpus(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: EPYC 9654\nmodel name\t: EPYC 9654\n")
    kind = describe(["H100", "L4", "H100"], proc=tmp_path, cores=192)
    assert kind == "EPYC 9654, 192 cores, 2 x H100, 1 x L4"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("model name : Xeon\nflags : fpu avx2 avx512f\n", "model name : Xeon\nflags : fpu avx2\n"),
        ("CPU implementer : 0x41\nCPU part : 0xd0c\n", "CPU implementer : 0x41\nCPU part : 0xd40\n"),
    ],
)
def test_processors_of_one_name_that_can_do_different_things_are_told_apart(tmp_path, one, other):
    kinds = []
    for text in (one, other, one * 2):
        (tmp_path / "cpuinfo").write_text(text)
        kinds.append((describe(proc=tmp_path, cores=8), features(proc=tmp_path)))
    assert kinds[0][0] == kinds[1][0]
    assert kinds[0] == kinds[2] != kinds[1]


def test_what_is_unknown_is_left_out(tmp_path):
    assert describe(proc=tmp_path, cores=8) == "8 cores"


def test_this_machine_has_a_kind():
    assert describe().endswith("cores")
