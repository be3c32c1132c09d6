"""Runs a check among processes of this machine: one for each of its GPUs, at least two.

The processes are forked, so no CUDA context may be in this one yet. That is why a process of its own counts
the GPUs.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import TypeAlias

from pulsetrain.diagnostics import members

MemberReport: TypeAlias = Mapping[str, object]
"""What the check of one member returns; only `ok` and `error` if the member did not answer."""
Work: TypeAlias = Callable[..., object]
"""A check that takes the fields of a `members.Member`."""

LEAST_MEMBERS = 2
COUNT_TIMEOUT_S = 10.0
END_S = 2.0
"""for a process to end by itself after its answer"""
_LATE: MemberReport = MappingProxyType({"ok": False, "error": "no answer in time"})


def gpu_count() -> int:
    """How many GPUs a process of this machine may use. 0 where they do not answer."""
    [answer] = _forked([lambda writer: writer.send({"gpus": len(members.visible_gpus())})], COUNT_TIMEOUT_S)
    count = answer.get("gpus", 0)
    return count if isinstance(count, int) else 0


def run(work: Work, *, size: int, timeout_s: float, processors_only: bool = False) -> list[MemberReport]:
    """What `work` returns in each of `size` forked processes, within `timeout_s`.

    A process that dies or takes longer is a failed report. Members wait for each other for half of the time,
    so that they can still say on whom.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def member(index: int) -> Callable[[Connection], None]:
        return lambda writer: writer.send(
            work(
                index=index,
                size=size,
                store_address="127.0.0.1",
                store_port=store.port,
                prefix="local",
                timeout_s=timeout_s / 2,
                processors_only=processors_only,
            )
        )

    return _forked([member(index) for index in range(size)], timeout_s)


def _forked(work: list[Callable[[Connection], None]], timeout_s: float) -> list[MemberReport]:
    """What each of these sends, all at the same time in processes of their own."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in work]
    processes = [
        context.Process(target=_alone, args=(each, writer), daemon=True)
        for each, (_, writer) in zip(work, pipes, strict=True)
    ]
    for process, (_, writer) in zip(processes, pipes, strict=True):
        process.start()
        writer.close()  # so that its end is seen, which nobody else holds open then
    end_s = time.monotonic() + timeout_s
    answers = [_answer(reader, end_s) for reader, _ in pipes]
    for process, answer in zip(processes, answers, strict=True):
        process.join(timeout=0 if answer is _LATE else END_S)
        if process.is_alive():
            process.kill()
            process.join()
    return answers


def _alone(work: Callable[[Connection], None], writer: Connection) -> None:
    """Do one's work without torch's other threads: a fork has none of them, and waits for them for ever."""
    import torch

    torch.set_num_threads(1)
    work(writer)


def _answer(reader: Connection, end_s: float) -> MemberReport:
    with reader:
        if not reader.poll(max(0.0, end_s - time.monotonic())):
            return _LATE
        try:
            return dict(reader.recv())
        except EOFError:
            return {"ok": False, "error": "the process died"}
