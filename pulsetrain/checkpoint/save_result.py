"""What became of one save, for the training script to look at or wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Event

from pulsetrain.checkpoint.memory.arena import ArenaWriter
from pulsetrain.checkpoint.memory.header_page import NOWHERE
from pulsetrain.checkpoint.memory.slots import SlotInfo
from pulsetrain.core.errors import CheckpointError


class SaveResult:
    """One save. `skipped` says why nothing was saved. Where it is empty, the checkpoint is on its way."""

    def __init__(self, step: int, *, skipped: str = "", arena: ArenaWriter | None = None) -> None:
        self.step = step
        self.skipped = skipped
        self.waiting_since_ns = 0
        """Since when training waits for the copy, of `time.perf_counter_ns`. 0: it does not."""
        self._arena = arena
        self._copied = Event()
        self._published: Future[SlotInfo] = Future()

    def __bool__(self) -> bool:
        """Whether it was not skipped and has not failed so far."""
        return not self.skipped and not (self._published.done() and self._published.exception())

    def __repr__(self) -> str:
        return f"SaveResult(step={self.step}, status={self.status!r})"

    @property
    def status(self) -> str:
        """`skipped: WHY`, `copying`, `copied`, `saved` (published in memory), or `failed: WHY`."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        if self._published.done():
            error = self._published.exception()
            return f"failed: {error}" if error else "saved"
        return "copied" if self._copied.is_set() else "copying"

    def wait(self, timeout_s: float | None = None) -> SlotInfo:
        """Wait until it is published in memory.

        Raises `CheckpointError` where it was skipped, failed, or is not saved after `timeout_s`.
        """
        if self.skipped:
            raise CheckpointError(f"step {self.step} was skipped: {self.skipped}")
        try:
            return self._published.result(timeout_s)
        except FutureTimeout as error:
            raise CheckpointError(f"step {self.step} is not saved after {timeout_s} s") from error

    def wait_replicated(self, timeout_s: float, poll_s: float = 0.002) -> bool:
        """Wait until the agent's peers hold this step, or a later one.

        False at once where there are no peers. Raises `CheckpointError` where they do not hold it after
        `timeout_s`, and as `wait`.
        """
        self.wait(timeout_s)

        def safe(arena: ArenaWriter) -> bool | None:
            step = arena.replicated_step
            return None if step == NOWHERE else step >= self.step

        return self._poll(safe, "in a peer's memory", timeout_s, poll_s)

    def wait_durable(self, timeout_s: float, poll_s: float = 0.02) -> None:
        """Wait until the agent has committed this step, or a later one, to storage.

        What was saved before the script went back, or in an earlier attempt, does not count.

        Raises `CheckpointError` at once where there is no storage, where it is not committed after
        `timeout_s`, and as `wait`. Who waits for this may delete older files next: it is never just false.
        """
        info = self.wait(timeout_s)

        def safe(arena: ArenaWriter) -> bool | None:
            return None if arena.durable_step == NOWHERE else arena.is_durable(info)

        if not self._poll(safe, "in storage", timeout_s, poll_s):
            raise CheckpointError(f"step {self.step} cannot be in storage: this job has none (--checkpoints)")

    def _poll(
        self, safe: Callable[[ArenaWriter], bool | None], where: str, timeout_s: float, poll_s: float
    ) -> bool:
        """Wait for `safe` to say true. None: it never will."""
        assert self._arena is not None, "what is published has an arena"
        deadline = time.monotonic() + timeout_s
        while not (answer := safe(self._arena)):
            if answer is None:
                return False
            if time.monotonic() > deadline:
                raise CheckpointError(f"step {self.step} is not {where} after {timeout_s} s")
            time.sleep(poll_s)
        return True

    # For the checkpointer.

    @property
    def copied(self) -> bool:
        """The copy is complete, or has failed: the state may change."""
        return self._copied.is_set()

    @property
    def finished(self) -> bool:
        """It was published, or has failed."""
        return self._published.done()

    def mark_copied(self) -> None:
        """The state may change from now on."""
        self._copied.set()

    def mark_published(self, info: SlotInfo) -> None:
        """It is readable in the arena."""
        self._published.set_result(info)

    def mark_failed(self, error: BaseException) -> None:
        """It never will be readable. Nothing changes where it is readable or has failed already."""
        why = str(error) or type(error).__name__
        with contextlib.suppress(InvalidStateError):
            self._published.set_exception(CheckpointError(f"step {self.step}: {why}"))

    def wait_copied(self) -> None:
        """Wait until the state may change."""
        if not self._copied.is_set():
            self.waiting_since_ns = time.perf_counter_ns()
            self._copied.wait()

    def wait_finished(self) -> None:
        """Wait until it is published or has failed. Never raises."""
        if not self._published.done():
            with contextlib.suppress(Exception):
                self._published.result()
