"""What a job's time went to, and what a stop would cost, in words."""

from __future__ import annotations

from pulsetrain.core.json import JsonObject
from pulsetrain.dashboard.models.text import duration

_LOST = {
    "start": "to start",
    "detect": "to detect faults",
    "locate": "to locate faults",
    "fail_over": "to fail over",
    "recompute": "to do steps again",
}


def ettr_facts(job: JsonObject) -> dict[str, str]:
    """The effective training time ratio of a job of the hub's status, nothing where it has none.

    >>> ettr_facts({"time_use": {"ettr": 0.98765, "ettr_1h": 0.9, "seconds": {}}})
    {'ETTR': '98.8%', 'ETTR, last hour': '90.0%'}
    """
    use = job.get("time_use") or {}
    if use.get("ettr") is None or use.get("ettr_1h") is None:
        return {}
    return {"ETTR": f"{use['ettr']:.1%}", "ETTR, last hour": f"{use['ettr_1h']:.1%}"}


def ettr_text(job: JsonObject) -> str:
    """The same in one line, "" where it has none.

    >>> ettr_text({"time_use": {"ettr": 0.98765, "ettr_1h": 0.9, "seconds": {}}})
    '98.8%, last hour 90.0%'
    """
    return ", last hour ".join(ettr_facts(job).values())


def time_sentence(job: JsonObject) -> str:
    """Where the time of a job went since this hub knows it, "" where that is not known.

    >>> seconds = {"train": 90.0, "start": 6.0, "detect": 0.0, "locate": 0.0, "fail_over": 4.0}
    >>> time_sentence({"time_use": {"ettr": 0.9, "ettr_1h": 0.9, "seconds": seconds}})
    'It trained for 90.0% of 1 min 40 s. The rest: 6.00 s to start, 4.00 s to fail over.'
    """
    use = job.get("time_use") or {}
    if use.get("ettr") is None:
        return ""
    seconds = use["seconds"]
    lost = [f"{duration(seconds[key] * 1e9)} {words}" for key, words in _LOST.items() if seconds.get(key)]
    rest = f" The rest: {', '.join(lost)}." if lost else ""
    return f"It trained for {use['ettr']:.1%} of {duration(sum(seconds.values()) * 1e9)}.{rest}"


def price_sentence(answer: JsonObject) -> str:
    """What an eviction or a move would cost. "" where it stops nothing or nobody knows.

    >>> price_sentence({"price": {"stop_s": 12.0, "lost_gpu_s": 96.0, "ettr_1h_change": -0.00333}})
    'It would cost about 12.0 s of all ranks, 0.0267 GPU hours, and 0.33% of the next hour.'
    """
    price = answer.get("price") or {}
    if not price.get("stop_s"):
        return ""
    return (
        f"It would cost about {duration(price['stop_s'] * 1e9)} of all ranks, "
        f"{price['lost_gpu_s'] / 3600:,.3g} GPU hours, and {-price['ettr_1h_change']:.2%} of the next hour."
    )
