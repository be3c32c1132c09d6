"""`pulsetrain.restartable`: a training function that is called again in its process after a fault elsewhere.

Without it a fault of one rank restarts the processes of all. With it only the rank at fault starts anew. The
others give up their attempt, wait, and call the function again with the new attempt's environment. Imports,
compiled code, caches and CUDA contexts stay.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from pulsetrain.checkpoint.restarting.parked_rank import ParkedRank, Restart
from pulsetrain.checkpoint.restarting.peer_loss import is_peer_loss
from pulsetrain.checkpoint.rng import CudaSeeds, RngState

P = ParamSpec("P")
T = TypeVar("T")

PEER_LOSS_WAIT_S = 10.0
"""How long an exception that looks like a lost peer waits for the agent to say that a peer was lost."""


def restartable(function: Callable[P, T]) -> Callable[P, T]:
    """Let `function` be called again in this process when another rank or node is lost. A decorator.

    The function makes its process groups, builds the model, calls `Checkpointer.restore` and trains, as a
    script does from its first line. It is called with the same arguments each time, with the environment of
    the new attempt, and with the random generators as they were at first. Only the main thread's outermost
    call counts. Without an agent it is called once.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        rank = ParkedRank.of_process()
        if rank is None or not rank.begin():
            return function(*args, **kwargs)
        try:
            return _call_until_it_ends(rank, functools.partial(function, *args, **kwargs))
        finally:
            rank.end()

    return call


def _call_until_it_ends(rank: ParkedRank, function: Callable[[], T]) -> T:
    generators, cuda = RngState(), CudaSeeds()
    first = generators.state_dict()
    while True:
        reason = ""
        try:
            try:
                rank.enter()
                return function()
            finally:
                rank.leave()
        except BaseException as error:
            rank.leave()
            if not _is_elsewhere(rank, error):
                raise
            reason = _one_line(error)
        _say(f"gives up its attempt and goes on in the same process: {reason}")
        rank.end_attempt()
        _free_memory()
        rank.park(reason)
        generators.load_state_dict(first)
        cuda.seed()


def _free_memory() -> None:
    """Give the model's memory back to the device: the node is checked while the process is parked."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _is_elsewhere(rank: ParkedRank, error: BaseException) -> bool:
    """Whether `error` ended the function because of a fault elsewhere. Waits where that is not known yet."""
    if isinstance(error, Restart) or rank.aborted:
        return True
    if not is_peer_loss(error):
        return False
    _say(f"waits for the agent, because a peer seems lost: {_one_line(error)}")
    return rank.wait_for_abort(PEER_LOSS_WAIT_S)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _say(text: str) -> None:
    sys.stderr.write(f"pulsetrain: rank {os.environ.get('RANK', '?')} {text}\n")
