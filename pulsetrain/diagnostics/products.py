"""Which format of numbers a device multiplies fast.

GPUs before compute capability 8 have no products in bfloat16. cuBLAS refuses them there, or takes a way that
is far slower. Source: CUDA programming guide, compute capabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsetrain.diagnostics.measurement import unsupported

if TYPE_CHECKING:
    import torch

BFLOAT16_SINCE = 8
_TRIED = 16
"""rows and columns of a product that shows whether there are any"""


def fast_format(device: torch.device) -> torch.dtype:
    """The fastest format whose products a device has: float32 on a processor.

    Raises `RuntimeError` where a product fails for another reason than its format.
    """
    import torch

    if device.type != "cuda":
        return torch.float32
    new = torch.cuda.get_device_capability(device)[0] >= BFLOAT16_SINCE
    for kind in (torch.bfloat16, torch.float16) if new else (torch.float16,):
        if _has(device, kind):
            return kind
    return torch.float32


def _has(device: torch.device, kind: torch.dtype) -> bool:
    try:
        multiplied(device, kind)
    except RuntimeError as error:
        if not unsupported(str(error)):
            raise
        return False
    return True


def multiplied(device: torch.device, kind: torch.dtype) -> None:
    """Multiply once. Raises `RuntimeError`, as where the device has no such products."""
    import torch

    ones = torch.ones(_TRIED, _TRIED, device=device, dtype=kind)
    torch.mm(ones, ones)
