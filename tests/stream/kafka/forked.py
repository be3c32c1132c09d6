"""Ingest processes forked from one parent that has everything imported: a start costs milliseconds.

Run as a script it reads commands, one a line, and answers each with one line of JSON:

    {"start": {"store": URL, "servers": ..., "prefix": ..., "group": ..., "log": FILE}}  ->  the child's id
    {"wait": PID}                                                     ->  its exit status (negative: signal)

The parent opens no store and no connection, and leaves chDB to its children: loading that starts threads.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.repository import ROOT

_PR_SET_PDEATHSIG = 1


class Forker:
    """The parent, as a test sees it."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, **what):
        return Child(self, self.ask("start", what))

    def ask(self, word, value):
        self._process.stdin.write(json.dumps({word: value}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.kill()
        self._process.communicate()


class Child:
    """One forked ingest, with the few methods of `subprocess.Popen` that tests use."""

    def __init__(self, forker, pid):
        self._forker, self.pid = forker, pid
        self.returncode = None

    def poll(self):
        """None while it runs; once it has ended it stays a zombie until `wait`."""
        if self.returncode is None and _state(self.pid) == "Z":
            self.wait()
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout=None):
        if self.returncode is None:
            self.returncode = self._forker.ask("wait", self.pid)
        return self.returncode


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _serve():
    from pulsetrain.core.log import configure
    from pulsetrain.hub.ingest import run_ingest

    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            status = os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1])
            print(status, flush=True)
            continue
        child = os.fork()
        if child == 0:
            _run(run_ingest, configure, **command["start"])
        print(child, flush=True)


def _run(run_ingest, configure, *, store, servers, prefix, group, log):
    """The child: what `pulsetrain ingest` does, with its output in `log`."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        configure()
        ingest = {"group": group, "member": "only", "linger_s": 0.1}
        run_ingest(store, None, {"servers": servers, "prefix": prefix}, ingest, None, print)
        status = 0
    except BaseException as error:  # noqa: BLE001 - edge of a process: its log says why
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve()
