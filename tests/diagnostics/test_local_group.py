"""Processes of one machine that check each other."""

import os
import signal

from pulsetrain.diagnostics import local_group


def test_who_dies_or_takes_too_long_has_a_failed_report():
    def work(*, index, size, **_):
        if index == 1:
            os._exit(3)
        while index == 2:
            signal.pause()
        return {"ok": True, "size": size}

    answers = local_group.run(work, size=3, timeout_s=0.5)
    assert answers == [
        {"ok": True, "size": 3},
        {"ok": False, "error": "the process died"},
        {"ok": False, "error": "no answer in time"},
    ]


def test_gpus_are_counted_by_a_process_of_its_own(monkeypatch):
    here = os.getpid()
    gpus = lambda: ["GPU-a", "GPU-b"] if os.getpid() != here else []  # noqa: E731
    monkeypatch.setattr(local_group.members, "visible_gpus", gpus)
    assert local_group.gpu_count() == 2
