"""Activity of GPUs by a binding that is made here, where the driver fails."""

import types

import pytest

from pulsetrain.collectors.machine.gpm import GpuActivity


class NVMLError(Exception):
    pass


class NoPermission(NVMLError):
    pass


class Binding:
    """A card with GPM whose driver raises `error` for each sample."""

    NVMLError, NVMLError_NotSupported, NVMLError_NoPermission = (
        NVMLError,
        type("N", (NVMLError,), {}),
        NoPermission,
    )

    def __init__(self, error):
        self.error, self.made, self.asked = error, 0, 0

    def nvmlGpmQueryDeviceSupport(self, handle):
        return types.SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self):
        self.made += 1
        return object()

    def nvmlGpmSampleGet(self, handle, sample):
        self.asked += 1
        raise self.error


def test_a_driver_that_fails_again_and_again_costs_no_memory():
    binding = Binding(NVMLError("unknown"))
    activity = GpuActivity(binding)
    for _ in range(100):
        with pytest.raises(NVMLError):
            list(activity.read("GPU-1", "handle"))
    assert (binding.asked, binding.made) == (100, 1)


def test_a_card_that_refuses_is_not_asked_again():
    binding = Binding(NoPermission())
    activity = GpuActivity(binding)
    assert [list(activity.read("GPU-1", "handle")) for _ in range(100)] == [[]] * 100
    assert binding.asked == 1
