"""Tensors reach their targets in two parts, on the CPU and on CUDA."""

import mmap

import pytest
import torch

from pulsetrain.checkpoint.copying import CudaCopier, HostCopier, Pairs, copier_for


def pairs(device: str = "cpu") -> Pairs:
    """Sources of ones and twos, and targets of zeros."""

    def part(value: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        sources = [torch.full((3, 2), value, device=device), torch.full((4,), value, dtype=torch.bfloat16)]
        return sources, [torch.zeros(s.shape, dtype=s.dtype) for s in sources]

    return Pairs(volatile=part(1), optimizer_owned=part(2))


def copied(part) -> list[bool]:
    return [torch.equal(source.cpu(), target) for source, target in zip(*part, strict=True)]


def test_volatile_tensors_are_copied_first_and_the_rest_at_the_end():
    copier, both = HostCopier(), pairs()
    copier.begin(both)
    assert copied(both.volatile) == [True, True]
    assert copied(both.optimizer_owned) == [False, False]
    copier.finish(both)
    assert copied(both.optimizer_owned) == [True, True]


def test_changes_after_the_first_part_are_not_in_the_copy():
    copier, both = HostCopier(), pairs()
    copier.begin(both)
    expected = [source.clone() for source in both.volatile[0]]
    for source in both.volatile[0]:
        source.add_(5)
    copier.finish(both)
    assert all(map(torch.equal, both.volatile[1], expected))


def test_parameters_are_copied_without_a_gradient():
    parameter = torch.nn.Parameter(torch.ones(3))
    both = Pairs(volatile=([], []), optimizer_owned=([parameter], [torch.zeros(3)]))
    copier = copier_for(cuda=False)
    copier.begin(both)
    copier.finish(both)
    (target,) = both.optimizer_owned[1]
    assert torch.equal(target, torch.ones(3))
    assert not target.requires_grad


@pytest.mark.gpu
def test_device_tensors_reach_pinned_memory_and_later_changes_do_not():
    copier, both = CudaCopier(), pairs("cuda")
    copier.adopt(mmap.mmap(-1, 4096))
    copier.begin(both)
    for source in both.volatile[0]:
        source.add_(5)
    copier.finish(both)
    torch.cuda.synchronize()
    assert copied(both.optimizer_owned) == [True, True]
    assert float(both.volatile[1][0].sum()) == 6.0
