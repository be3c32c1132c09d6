"""The title is what `ps` shows, and nothing else of the process changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pulsetrain.core.process_title import set_process_title

SCRIPT = """
import os, sys
from pathlib import Path
from pulsetrain.core.process_title import set_process_title

set_process_title(sys.argv[1])
for name in ("cmdline", "comm", "environ"):
    print(Path("/proc/self", name).read_bytes().replace(b"\\0", b"|").decode().strip("|\\n"))
print(os.environ.get("SPT_NOENV"))
"""


@pytest.mark.integration
@pytest.mark.parametrize("title", ["rank 3 of job gpt", "agent of node " + "n" * 4000])
def test_the_command_line_changes_and_name_and_environment_stay(title):
    command = [sys.executable, "-c", SCRIPT, title]
    env = {"MARK": "7", "PATH": os.environ["PATH"]}
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    cmdline, name, environ, kept = shown
    assert f"pulsetrain: {title}".startswith(cmdline)
    assert cmdline.startswith("pulsetrain: ")
    assert name == Path(sys.executable).name[:15]
    assert set(environ.split("|")) >= {"MARK=7", f"PATH={env['PATH']}"}
    assert kept == "None"


def test_without_the_library_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "setproctitle", None)
    before = Path("/proc/self/cmdline").read_bytes()
    set_process_title("rank 0")
    assert Path("/proc/self/cmdline").read_bytes() == before
    assert "SPT_NOENV" not in os.environ
