"""Which format of numbers a device multiplies fast, with GPUs that are made up."""

import pytest
import torch

from pulsetrain.diagnostics import arithmetic, products

GPU = torch.device("cuda", 0)
REFUSED = "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle)`"


@pytest.mark.parametrize(
    ("capability", "refused", "fast"),
    [
        ((9, 0), set(), torch.bfloat16),
        ((9, 0), {torch.bfloat16}, torch.float16),
        ((7, 5), set(), torch.float16),
        ((7, 0), {torch.bfloat16}, torch.float16),
        ((5, 2), {torch.bfloat16, torch.float16}, torch.float32),
    ],
)
def test_the_fastest_format_is_one_that_the_gpu_has(monkeypatch, capability, refused, fast):
    def multiplied(device, kind):
        if kind in refused:
            raise RuntimeError(REFUSED)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(products, "multiplied", multiplied)
    assert products.fast_format(GPU) == fast
    own = {"float32", str(fast).removeprefix("torch.")}
    assert set(arithmetic._formats(GPU)) == own


def test_a_product_that_fails_for_another_reason_is_a_fault(monkeypatch):
    def multiplied(device, kind):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(products, "multiplied", multiplied)
    with pytest.raises(RuntimeError, match="illegal"):
        products.fast_format(GPU)


def test_a_processor_multiplies_in_float32_and_in_bfloat16():
    products.multiplied(torch.device("cpu"), torch.bfloat16)
    assert products.fast_format(torch.device("cpu")) == torch.float32
    assert arithmetic._formats(torch.device("cpu")) == ("float32", "bfloat16")
