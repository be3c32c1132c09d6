"""Notices that records of a job no longer reach the store while its steps go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pulsetrain.analytics.verdict import Healthy, Verdict
from pulsetrain.records.findings import Finding

LIMIT_S = 15.0
"""Agents send twice a second and ingest stores within a second. Later than this, something is stuck."""


@dataclass(kw_only=True)
class StorageLag:
    """What is remembered of one job between two looks."""

    stored_step: int = -1
    since_s: float = -1.0

    def look(
        self, job: str, attempt: int, *, stored_step: int, live_step: int, now_s: float, now_ns: int
    ) -> Verdict:
        """A finding `no_data` where heartbeats report steps and none has been stored for `LIMIT_S`.

        `stored_step` and `live_step` are the newest steps in the store and in the heartbeats, -1 for none.
        A job that makes no steps has nothing to store, so it proves nothing.

        >>> look = StorageLag().look
        >>> look("gpt", 0, stored_step=7, live_step=7, now_s=0.0, now_ns=0).numbers
        {'behind_s': 0.0}
        >>> look("gpt", 0, stored_step=7, live_step=90, now_s=60.0, now_ns=0).summary
        'No record of this job has been stored for 60 s, while its ranks went on from step 7 to 90.'
        """
        if stored_step != self.stored_step or live_step <= stored_step or self.since_s < 0:
            self.stored_step, self.since_s = stored_step, now_s
        behind_s = now_s - self.since_s
        if behind_s < LIMIT_S:
            return Healthy(analyzer="no_data", numbers={"behind_s": behind_s})
        return Finding(
            ts_ns=now_ns,
            job=job,
            attempt=attempt,
            kind="no_data",
            subject_type="job",
            subject=job,
            severity="critical",
            confidence=1.0,
            summary=f"No record of this job has been stored for {behind_s:.0f} s, "
            f"while its ranks went on from step {stored_step} to {live_step}.",
            evidence={"stored_step": stored_step, "live_step": live_step, "behind_s": round(behind_s, 1)},
        )
