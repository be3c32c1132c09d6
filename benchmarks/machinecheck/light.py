"""What a light check of eight healthy nodes costs: processor time, and rounds.

A process that has imported torch forks one worker for each command, as an agent's zygote does. All eight
nodes share this machine, so the time is what its cores need for eight.

    python benchmarks/machinecheck/light.py
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence

from pulsetrain.diagnostics import all_gather, selfcheck
from pulsetrain.diagnostics.node_check import LIGHT, NodeCheck
from pulsetrain.diagnostics.rounds import Group, GroupResult
from pulsetrain.recovery.policy import Policy

Answer = dict[str, object]
Work = tuple[Callable[..., object], dict[str, object]]

STORE_S = 120  # the store ends by itself, should nobody end it


def run(nodes: int = 8) -> Answer:
    """Self-checks, then rounds until the level asks for no more."""
    began_s, before_s = time.perf_counter(), _cpu_s()
    policy = Policy()
    reports = forked([(selfcheck.run, {"seconds": policy.self_check_s, "device": "cpu"})] * nodes)
    self_check_s = _cpu_s() - before_s
    store, port = store_process()
    try:
        check = NodeCheck({f"n{i}": "" for i in range(nodes)}, LIGHT)
        rounds = 0
        while groups := check.next_round():
            check.take(real_round(groups, rounds, port, policy.pair_timeout_s))
            rounds += 1
    finally:
        end(store)
    return {
        "nodes": nodes,
        "passed": all(r.get("ok") for r in reports) and check.verdict().state == "healthy",
        "rounds": rounds,
        "light_check_s": round(time.perf_counter() - began_s, 2),
        "cpu_s": round(_cpu_s() - before_s, 2),
        "self_check_cpu_s": round(self_check_s, 2),
    }


def healthy(node: str) -> Callable[..., object]:
    """What a member does whose node has no fault."""
    return all_gather.run


def real_round(
    groups: Sequence[Group],
    number: int,
    port: int,
    timeout_s: float,
    work: Callable[[str], Callable[..., object]] = healthy,
) -> list[GroupResult]:
    """All groups gather at the same time. Each member is a process, which does the `work` of its node."""
    members = [(group, index) for group in groups for index in range(len(group))]
    common = {"store_address": "127.0.0.1", "store_port": port, "timeout_s": timeout_s}
    common["payload_bytes"] = LIGHT.payload_bytes
    own = [{"index": i, "size": len(g), "prefix": f"{number}:{g[0]}", **common} for g, i in members]
    jobs = [(work(g[i]), kwargs) for (g, i), kwargs in zip(members, own, strict=True)]
    answers = iter(forked(jobs))
    results = []
    for group in groups:
        said = [next(answers) for _ in group]
        results.append(
            GroupResult(
                members=group,
                ok=all(a.get("ok") for a in said),
                seconds=max(float(str(a.get("seconds", 0.0))) for a in said),
                round=number,
            )
        )
    return results


def store_process() -> tuple[int, int]:
    """Process and port of a rendezvous store."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        time.sleep(STORE_S)
        os._exit(0)
    os.close(writer)
    port = int(os.read(reader, 8))
    os.close(reader)
    return pid, port


def end(pid: int) -> None:
    """Kill a child and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def forked(jobs: Sequence[Work]) -> list[Answer]:
    """What each job returns, all at the same time in processes of their own. {} for one that died."""
    began = []
    for work, kwargs in jobs:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(writer, json.dumps(work(**kwargs)).encode())
            os._exit(0)
        os.close(writer)
        began.append((pid, reader))
    answers = []
    for pid, reader in began:
        with os.fdopen(reader, "rb") as file:
            text = file.read()
        os.waitpid(pid, 0)
        answers.append(json.loads(text) if text else {})
    return answers


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    import numpy  # noqa: F401  # as an agent's zygote has it
    import torch.distributed  # noqa: F401

    print(json.dumps(run()))
