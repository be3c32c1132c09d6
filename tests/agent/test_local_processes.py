"""How many ranks a node runs."""

import os
import sys

import pytest

from pulsetrain.agent import local_processes as module
from pulsetrain.agent.local_processes import devices_of_torch, local_processes
from pulsetrain.core.errors import ConfigError

CPUS = len(os.sched_getaffinity(0))


def asked(devices):
    """Stands for torch, which can use so many devices of each name."""
    return lambda name: devices.get(name, 0)


@pytest.fixture
def nvidia(tmp_path):
    """NVIDIA's driver with three GPUs."""
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    return tmp_path


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("cpu", CPUS), ("gpu", 8), ("auto", 8), ("xpu", 4)])
def test_a_machine_without_nvidias_driver_has_the_devices_that_torch_can_use(tmp_path, text, number):
    amd = asked({"gpu": 8, "auto": 8, "xpu": 4})
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert local_processes(text, environ, driver=tmp_path / "none", ask=amd) == number


def test_without_any_device_auto_is_the_processors(tmp_path):
    environ = {"CUDA_VISIBLE_DEVICES": "0"}  # as a site may set it on all machines
    assert local_processes("auto", environ, driver=tmp_path / "none", ask=asked({})) == CPUS


@pytest.mark.parametrize("text", ["gpu", "auto"])
@pytest.mark.parametrize(("environ", "number"), [({}, 3), ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2)])
def test_nvidias_driver_is_asked_without_torch(nvidia, text, environ, number):
    assert local_processes(text, environ, driver=nvidia, ask=asked({"gpu": 9, "auto": 9})) == number


@pytest.mark.parametrize("text", ["gpu", "xpu"])
def test_a_device_that_is_not_there_is_named(tmp_path, text):
    with pytest.raises(ConfigError, match=f"--nproc-per-node {text}: torch can use no {text.upper()} here"):
        local_processes(text, {}, driver=tmp_path / "none", ask=asked({}))


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5"])
def test_what_is_no_number_of_ranks_is_named(text):
    with pytest.raises(ConfigError, match="allowed: a number from 1, auto, gpu, xpu, cpu"):
        local_processes(text, {}, ask=asked({}))


@pytest.mark.integration
def test_a_torch_that_cannot_be_asked_is_told_and_not_taken_for_a_machine_without_devices(monkeypatch):
    monkeypatch.setattr(module, "_ASK", "raise ImportError('no libamdhip64.so')")
    with pytest.raises(ConfigError, match=r"torch cannot be asked for devices: .*no libamdhip64.so"):
        devices_of_torch("auto")
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(ConfigError, match=r"torch cannot be asked for devices: .*No such file"):
        devices_of_torch("auto")


@pytest.mark.integration
@pytest.mark.parametrize("name", ["auto", "gpu", "xpu"])
def test_torch_says_how_many_devices_it_can_use(name):
    import torch

    kind = {"auto": torch.accelerator, "gpu": torch.cuda, "xpu": torch.xpu}[name]
    assert devices_of_torch(name) == (kind.device_count() if kind.is_available() else 0)
