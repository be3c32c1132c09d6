"""What a demo leaves running is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid

import pytest

from pulsetrain.demo import reaper


@pytest.mark.integration
def test_the_reaper_ends_what_bears_the_mark_and_nothing_else():
    mark = uuid.uuid4().hex
    ours = subprocess.Popen(["sleep", "60"], env=os.environ | {reaper.MARK: mark}, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env=os.environ | {reaper.MARK: "another"})
    try:
        with reaper.reaper(mark):
            pass
        assert ours.wait(timeout=40) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        ours.kill()
        ours.wait()
