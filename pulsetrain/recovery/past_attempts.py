"""Which attempts of a job earlier hubs have launched, as the store knows it, asked beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from pulsetrain.core.supervisor import one_line

log = structlog.get_logger()

PATIENCE_S = 3.0
"""An agent's hello waits for so long. A store that is away must not keep a job from its start."""


@dataclass(frozen=True, kw_only=True)
class _Question:
    """The answer to come, None where the store cannot tell. Nobody waits for it beyond `until_s`."""

    answer: Future[int | None]
    until_s: float


class PastAttempts:
    """`query` says which attempt of a job is the newest on record, -1 for none. It may block and raise.

    It runs on a thread of its own. The methods belong to the event loop.
    """

    def __init__(self, query: Callable[[str], int], *, patience_s: float = PATIENCE_S) -> None:
        self._query, self._patience_s = query, patience_s
        self._questions: dict[str, _Question] = {}

    async def ask(self, job: str) -> None:
        """Return once the newest attempt is known, or after a while without. All who ask share one query."""
        loop = asyncio.get_running_loop()
        if job not in self._questions:
            self._questions[job] = _Question(answer=self._begin(job), until_s=loop.time() + self._patience_s)
        question = self._questions[job]
        left_s = question.until_s - loop.time()
        if left_s > 0 and not question.answer.done():
            await asyncio.wait({asyncio.wrap_future(question.answer)}, timeout=left_s)

    def take(self, job: str) -> int:
        """The newest attempt on record, -1 where none is known. The next `ask` begins anew."""
        question = self._questions.pop(job, None)
        if question is None:
            return -1
        newest = question.answer.result() if question.answer.done() else None
        if newest is None:
            log.warning("past_attempts_unknown", job=job)
            return -1
        return newest

    def _begin(self, job: str) -> Future[int | None]:
        """The query on its way. Its thread does not delay the end of the hub."""
        answer: Future[int | None] = Future()
        threading.Thread(target=self._run, args=(job, answer), name="past attempts", daemon=True).start()
        return answer

    def _run(self, job: str, answer: Future[int | None]) -> None:
        try:
            answer.set_result(self._query(job))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job begins without an answer
            log.warning("past_attempts_not_read", job=job, error=one_line(error))
            answer.set_result(None)
