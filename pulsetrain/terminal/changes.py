"""What is new in the hub's status: how `pulsetrain status --watch` knows when to print again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.json import JsonObject

_AWAY = object()


def essence(status: JsonObject) -> object:
    """What counts as news: states, findings, nodes, decisions. Steps, ages and counts do not.

    Two statuses with equal essences say the same.

    >>> essence({"jobs": [{"job": "j", "step": 1}]}) == essence({"jobs": [{"job": "j", "step": 2}]})
    True
    """
    return (
        [_job(job) for job in status.get("jobs", ())],
        [_past(job) for job in status.get("past_jobs", ())],
        sorted(
            (row["process"], row["node"], row["loop"], row["stale"])
            for row in status.get("loops", ())
            if row["stale"] or row["failures"]
        ),
    )


def changes(
    ask: Callable[[], JsonObject], *, period_s: float, sleep: Callable[[float], None]
) -> Iterator[JsonObject | PulsetrainError]:
    """Yield the status at first and whenever its essence has changed, asked for every `period_s` seconds.

    Where the hub stops to answer, the reason is yielded once. When it answers again, the status is. Raises
    where the first question is not answered, and where the hub refuses the token.
    """
    said: object = None
    while True:
        try:
            status = ask()
        except UsageError:
            raise
        except PulsetrainError as error:
            if said is None:
                raise
            if said is not _AWAY:
                yield error
            said = _AWAY
        else:
            now = essence(status)
            if now != said:
                yield status
            said = now
        sleep(period_s)


def _past(job: JsonObject) -> object:
    return job.get("job"), (job.get("verdict") or {}).get("state"), job.get("attempt")


def _job(job: JsonObject) -> object:
    pending = job.get("pending_hang")
    return (
        *(job.get(name) for name in ("job", "state", "attempt", "world_size", "failure")),
        (job.get("verdict") or {}).get("state"),
        pending and (pending.get("rank"), pending.get("why"), pending.get("act_at_ns") is None),
        sorted(
            (f.get("kind", ""), f.get("subject_type", ""), f.get("subject", ""), f.get("severity", ""))
            for f in job.get("findings", ())
        ),
        sorted(
            (n.get("node", ""), n.get("state", ""), tuple(n.get("ranks") or ()), n.get("reason", ""))
            for n in job.get("nodes", ())
        ),
        len(job.get("recoveries", ())),
        sorted((job.get("instrumentation") or {}).items()),
    )
