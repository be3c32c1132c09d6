"""Clocks and power limits around a check: real binding, C library of our own."""

import os
import signal
import time

import pytest
from structlog.testing import capture_logs

from pulsetrain.agent.commands import Commands
from pulsetrain.collectors.machine import gpu_settings
from pulsetrain.collectors.machine.gpu_settings import SettingsKeeper
from tests.nvml.library import TestDriver

pytest.importorskip("pynvml")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    return TestDriver(tmp_path / "state", gpus=2)


@pytest.fixture
def nvml(driver, monkeypatch):
    binding = driver.bind(monkeypatch)
    binding.nvmlInit()
    return binding


def settings(nvml, gpu=0):
    found = gpu_settings.read(nvml)[gpu]
    return found.memory_clock_mhz, found.graphics_clock_mhz, found.power_limit_mw


def run(keeper, work):
    with capture_logs() as logs, keeper.kept():
        work()
    return [entry["change"] for entry in logs if entry["event"] == "gpu_settings"]


def change(driver, gpu=0):
    driver.set(gpu, set_clock_graphics=1200, set_clock_memory=1593, set_power=400_000)


def test_what_a_check_changes_is_set_back(driver, nvml):
    lines = run(SettingsKeeper({}, nvml=nvml, root=True), lambda: change(driver, 1))
    assert settings(nvml, 0) == settings(nvml, 1) == (2619, 1980, 700_000)
    assert lines == [
        "GPU-01: application clocks 1593/1200 MHz, before the check 2619/1980 MHz: set back",
        "GPU-01: power limit 400 W, before the check 700 W: set back",
    ]


def test_a_check_that_changes_nothing_says_and_sets_nothing(driver, nvml):
    driver.set(0, privileged=0)  # any attempt would be refused, and told
    assert run(SettingsKeeper({}, nvml=nvml, root=True), lambda: None) == []


def test_settings_come_back_though_the_check_fails_or_its_process_is_killed(driver, nvml):
    keeper = SettingsKeeper({}, nvml=nvml, root=True)

    def killed():
        pid = os.fork()
        if not pid:
            change(driver)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        raise TimeoutError("no result")

    with pytest.raises(TimeoutError):
        run(keeper, killed)
    assert settings(nvml) == (2619, 1980, 700_000)


def test_without_root_only_what_the_driver_allows_is_tried(driver, nvml):
    driver.set(0, privileged=0)
    keeper = SettingsKeeper({}, nvml=nvml, root=False)
    lines = run(keeper, lambda: change(driver))
    assert [line.rpartition(": ")[2] for line in lines] == ["not set back, only root may"] * 2
    driver.set(0, clocks_restricted=0, set_clock_graphics=1980, set_clock_memory=2619, set_power=700_000)
    lines = run(keeper, lambda: change(driver))
    assert [line.rpartition(": ")[2] for line in lines] == ["set back", "not set back, only root may"]
    assert settings(nvml) == (2619, 1980, 400_000)


def test_a_refusal_is_one_line(driver, nvml):
    driver.set(0, privileged=0)  # root in a container that may not
    lines = run(SettingsKeeper({}, nvml=nvml, root=True), lambda: change(driver))
    assert all(line.endswith("not set back: Insufficient Permissions") for line in lines)
    assert len(lines) == 2


def test_of_checks_that_overlap_the_first_records_and_the_last_sets_back(driver, nvml):
    keeper = SettingsKeeper({}, nvml=nvml, root=True)
    with keeper.kept():
        change(driver)
        with keeper.kept():
            pass
        assert settings(nvml) == (1593, 1200, 400_000)
    assert settings(nvml) == (2619, 1980, 700_000)


def test_gpus_that_the_check_cannot_see_are_left_alone(driver, nvml):
    keeper = SettingsKeeper({"CUDA_VISIBLE_DEVICES": "1"}, nvml=nvml, root=True)
    run(keeper, lambda: (change(driver, 0), change(driver, 1)))
    assert settings(nvml, 0) == (1593, 1200, 400_000)  # somebody else's job did that
    assert settings(nvml, 1) == (2619, 1980, 700_000)


def test_what_a_card_does_not_have_is_not_set(driver, nvml):
    driver.set(0, set_clock_graphics=None, set_clock_memory=None)
    lines = run(SettingsKeeper({}, nvml=nvml, root=True), lambda: driver.set(0, set_power=400_000))
    assert [line.partition(",")[0] for line in lines] == ["GPU-00: power limit 400 W"]


def test_a_gpu_that_falls_off_the_bus_is_one_line(driver, nvml):
    lines = run(SettingsKeeper({}, nvml=nvml, root=True), lambda: driver.lose(0))
    assert lines == ["GPU-00: it does not answer, so its settings are not known"]


def test_without_a_driver_and_with_one_that_hangs_the_check_runs(driver, nvml):
    driver.unload()
    done = []
    run(SettingsKeeper({}, nvml=nvml, root=True), lambda: done.append(1))
    driver_too_slow = SettingsKeeper({}, nvml=nvml, root=True, limit_s=0.05)
    driver._c.test_driver(1)
    driver.set(0, delay_ms=1500)
    began_s = time.monotonic()
    run(driver_too_slow, lambda: done.append(2))
    assert time.monotonic() - began_s < 1.5
    assert done == [1, 2]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, "ab"),
        ("", ""),
        ("0,1", "ab"),
        ("1", "b"),
        ("GPU-b", "b"),
        ("-1,0", ""),
        ("1,-1,0", "b"),
    ],
)
def test_visible_devices_are_named_by_index_or_uuid(visible, seen):
    found = [n for i, n in enumerate("ab") if gpu_settings.is_visible(i, f"GPU-{n}", visible)]
    assert "".join(found) == seen


def test_a_command_that_checks_keeps_the_settings_and_another_one_does_not(driver, nvml):
    from pulsetrain.protocol.messages import ArithmeticCheck, PairCheck, SelfCheck, Stop

    commands = Commands(None, None, settings=SettingsKeeper({}, nvml=nvml, root=True))
    pair = PairCheck(id=1, members=("a", "b"), store_address="h", store_port=1, prefix="p")
    for command in (SelfCheck(id=1), pair, ArithmeticCheck(id=1, seconds=1.0)):
        with commands._kept_settings(command):
            change(driver)
        assert settings(nvml) == (2619, 1980, 700_000)
    with commands._kept_settings(Stop(id=1, reason="")):
        change(driver)
    assert settings(nvml) == (1593, 1200, 400_000)


def refused(nvml):
    def count():
        raise nvml.NVMLError(999)

    return count


def test_what_the_driver_failed_to_set_back_is_told_and_set_back_with_the_next_check(
    driver, nvml, monkeypatch
):
    keeper = SettingsKeeper({}, nvml=nvml, root=True)
    with monkeypatch.context() as patched, capture_logs() as logs:
        with keeper.kept():
            change(driver)
            patched.setattr(nvml, "nvmlDeviceGetCount", refused(nvml))
        (told,) = [entry for entry in logs if entry["event"] == "gpu_settings_not_set_back"]
    assert (told["log_level"], told["gpus"]) == ("warning", ["GPU-00", "GPU-01"])
    assert settings(nvml) == (1593, 1200, 400_000)
    run(keeper, lambda: None)
    assert settings(nvml) == (2619, 1980, 700_000)


def test_a_driver_that_failed_once_to_tell_is_asked_with_the_next_check(driver, nvml, monkeypatch):
    keeper = SettingsKeeper({}, nvml=nvml, root=True)
    with monkeypatch.context() as patched:
        patched.setattr(nvml, "nvmlDeviceGetCount", refused(nvml))
        assert run(keeper, lambda: None) == []
    assert len(run(keeper, lambda: change(driver))) == 2
