"""Eight processes stand for eight nodes: one is stopped, one is slowed down, and rounds must find both.

    python -m tests.diagnostics.node_processes

prints the verdict as JSON. The processes are forked before any thread runs, and killed at the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from torch.distributed import TCPStore

from pulsetrain.diagnostics import all_gather
from pulsetrain.diagnostics.node_check import Level, NodeCheck
from pulsetrain.diagnostics.rounds import Group, GroupResult
from pulsetrain.diagnostics.slow_nodes import SlowTest
from pulsetrain.faults.throttle import Throttle

NODES = [f"n{i}" for i in range(8)]
BROKEN, SLOW, FACTOR = "n2", "n5", 4.0
LEVEL = Level(
    name="test",
    limit_s=200.0,
    failures=2,
    payload_bytes=1 << 18,
    finds="",
    slow_test=SlowTest(most_rounds=60),
)
FIRST_TIMEOUT_S, LATER_TIMEOUT_S = 10.0, 5.0


class Process:
    """One node: gathers when it is told to."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            serve(theirs)
            os._exit(0)
        theirs.close()

    def ask(self, **kwargs: object) -> None:
        self._pipe.send(kwargs)

    def answer(self, limit_s: float) -> dict[str, object]:
        if self._pipe.poll(max(0.0, limit_s)):
            return self._pipe.recv()
        return {"ok": False, "seconds": 0.0, "error": "no answer"}


def serve(pipe: Connection) -> None:
    while True:
        pipe.send(all_gather.run(**pipe.recv()))


def play(processes: dict[str, Process]) -> NodeCheck:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check, number = NodeCheck(dict.fromkeys(processes, ""), LEVEL), 0
    end_s = time.monotonic() + LEVEL.limit_s
    while time.monotonic() < end_s and (groups := check.next_round()):
        timeout_s = LATER_TIMEOUT_S if number else FIRST_TIMEOUT_S
        check.take(one_round(processes, groups, store.port, number, timeout_s))
        number += 1
    return check


def one_round(
    processes: dict[str, Process], groups: list[Group], port: int, number: int, timeout_s: float
) -> list[GroupResult]:
    for group in groups:
        for index, name in enumerate(group):
            processes[name].ask(
                index=index,
                size=len(group),
                store_address="127.0.0.1",
                store_port=port,
                prefix=f"{number}:{group[0]}",
                timeout_s=timeout_s,
                payload_bytes=LEVEL.payload_bytes,
            )
    end_s = time.monotonic() + timeout_s + 2
    return [result(processes, group, number, end_s) for group in groups]


def result(processes: dict[str, Process], group: Group, number: int, end_s: float) -> GroupResult:
    answers = {name: processes[name].answer(end_s - time.monotonic()) for name in group}
    return GroupResult(
        members=group,
        ok=all(a["ok"] for a in answers.values()),
        seconds=max(float(a["seconds"]) for a in answers.values()),
        error=next((str(a["error"]) for a in answers.values() if a["error"]), ""),
        round=number,
        own_times_s={
            name: {"compute": float(a["compute_s"]), "compute_mean": float(a["compute_mean_s"])}
            for name, a in answers.items()
            if a["ok"]
        },
    )


def main() -> None:
    processes = {name: Process() for name in NODES}
    pids = {name: process.pid for name, process in processes.items()}
    try:
        os.kill(pids[BROKEN], signal.SIGSTOP)
        peers = [pid for name, pid in pids.items() if name not in (BROKEN, SLOW)]
        with Throttle([pids[SLOW]], FACTOR, peers=peers):
            check = play(processes)
        print(json.dumps(check.verdict().row()))
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
