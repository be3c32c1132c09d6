"""Waiting for another process to change a word of shared memory."""

import mmap
import platform
import threading

import pytest

from pulsetrain.collectors.rank.squash.bell import Bell


@pytest.mark.parametrize("machine", ["x86_64", "unknown"])
def test_who_waits_is_woken_and_nobody_waits_for_what_has_rung_before(machine, monkeypatch):
    if machine == "unknown":  # without a futex it looks again and again
        monkeypatch.setattr(platform, "machine", lambda: machine)
    memory = mmap.mmap(-1, 4096)
    bell, other = Bell(memory, 8), Bell(memory, 8)
    rung = []

    def waits():
        while True:
            seen = bell.value
            if rung:
                return
            bell.wait(seen, 30.0)

    thread = threading.Thread(target=waits)
    thread.start()
    rung.append(True)
    other.ring()
    thread.join(20)
    assert not thread.is_alive()
    bell.wait(seen=bell.value + 1, timeout_s=30.0)
    bell.wait(seen=bell.value, timeout_s=0.001)
