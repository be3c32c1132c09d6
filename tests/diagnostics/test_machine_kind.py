"""What kind of machine this is."""

from __future__ import annotations

from pulsetrain.diagnostics.machine_kind import describe


def test_processor_cores_and_gpus(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: EPYC 9654\nmodel name\t: EPYC 9654\n")
    kind = describe(["H100", "L4", "H100"], proc=tmp_path, cores=192)
    assert kind == "EPYC 9654, 192 cores, 2 x H100, 1 x L4"


def test_what_is_unknown_is_left_out(tmp_path):
    assert describe(proc=tmp_path, cores=8) == "8 cores"


def test_this_machine_has_a_kind():
    assert describe().endswith("cores")
