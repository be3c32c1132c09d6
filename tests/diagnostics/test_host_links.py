"""What a copy between memory and a GPU must reach."""

import pytest

from pulsetrain.diagnostics.host_links import HostLink, better, checks, slow
from pulsetrain.diagnostics.pcie import PcieLink


def link(gpu=0, rate=5.0e10, *, memory=-1, near=-1, width=16, known=True, right=True):
    pcie = PcieLink(gt_per_s=32.0, width=width, device_width=16, near=near) if known else None
    return HostLink(gpu=gpu, uuid=f"GPU-{gpu}", memory=memory, bytes_per_s=rate, pcie=pcie, right=right)


def failed(*links, **options):
    return [check.name for check in checks(links, **options) if not check.ok]


def test_a_copy_from_the_memory_next_to_a_gpu_fails_far_below_its_link():
    [check] = checks([link()])
    assert check.limit == pytest.approx(6.3e9, rel=0.01)
    assert (check.ok, check.detail) == (True, "GPU-0, PCIe 32 GT/s x16")
    assert failed(link(rate=5e9)) == ["gpu0_host_link"]


def test_a_copy_below_half_of_its_link_is_told_since_others_may_use_the_same_switch():
    [check] = checks([link(rate=2.4e10)])
    assert (check.ok, check.detail) == (True, "GPU-0, PCIe 32 GT/s x16, 38% of it")


def test_a_slow_way_is_measured_again_and_its_better_measurement_counts():
    first = [link(0, 4e9), link(1, 5e10), link(2, 5e10, right=False)]
    assert [each.gpu for each in slow(first)] == [0]
    assert failed(*better(first[:2], [link(0, 5e10)])) == []
    assert failed(*better(first[:2], [link(0, 4.1e9)])) == ["gpu0_host_link"]
    assert failed(*better(first[:1], [link(0, 5e10, right=False)])) == ["gpu0_host_link"]


def test_a_link_with_fewer_lanes_promises_less_and_says_so():
    [check] = checks([link(rate=2.4e10, width=8)])
    assert (check.ok, check.detail) == (True, "GPU-0, PCIe 32 GT/s x8 of x16")


def test_two_ways_on_a_machine_with_two_memory_nodes_have_a_name_each():
    near, far = link(memory=0, near=0), link(rate=2e10, memory=1, near=0)
    assert [c.name for c in checks([near, far])] == ["gpu0_host_link_memory0", "gpu0_host_link_memory1"]
    assert failed(near, far) == []


def test_the_way_from_other_memory_is_compared_with_those_of_other_gpus():
    fleet = [link(gpu, memory=memory, near=0) for gpu in range(4) for memory in (0, 1)]
    assert failed(*fleet) == []
    slower = [link(2, 1.5e10, memory=1, near=0) if (o.gpu, o.memory) == (2, 1) else o for o in fleet]
    assert failed(*slower) == ["gpu2_host_link_memory1"]
    assert failed(*[o for o in slower if o.gpu != 0]) == []


def test_a_link_that_is_not_known_promises_nothing():
    assert [c.limit for c in checks([link(rate=1.0, known=False)])] == [0.0]
    fleet = [link(gpu, rate, known=False) for gpu, rate in enumerate((5e10, 5e10, 5e10, 1e10))]
    assert failed(*fleet) == ["gpu3_host_link"]


def test_encrypted_copies_are_compared_with_peers_alone():
    assert failed(link(rate=8e9), encrypted=True) == []


def test_bytes_that_change_are_a_fault_at_any_rate():
    assert failed(link(right=False, known=False)) == ["gpu0_host_link"]
