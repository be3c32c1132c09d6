"""The pool of devices in `pulsetrain status`: what is in use, what each job has, and what was done last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulsetrain.core.json import JsonObject
from pulsetrain.terminal.printable import printable

NEWEST = 3  # actions


def pool_lines(pool: JsonObject | None) -> Iterator[str]:
    """Return nothing where there is no pool.

    >>> job = {"job": "gpt", "tier": "premium", "promised": True, "devices": 2, "most_devices": 2}
    >>> pool = {"machines": {"a": {"devices": 4, "used": 2}}, "actions": []}
    >>> for line in pool_lines({**pool, "jobs": [{**job, "hour_share": 0.98, "why_waits": ""}]}):
    ...     print(line)
    Pool: 2 of 4 devices in use on 1 machine.
      gpt: premium, 2 of 2 devices, promised, 98.0% of its last hour
    """
    if not pool:
        return
    machines = pool["machines"].values()
    used, devices = (sum(machine[key] for machine in machines) for key in ("used", "devices"))
    noun = "machine" if len(machines) == 1 else "machines"
    yield f"Pool: {used} of {devices} devices in use on {len(machines)} {noun}."
    for job in pool["jobs"]:
        yield f"  {printable(job['job'])}: {', '.join(_facts(job))}"
    for action in pool["actions"][-NEWEST:]:
        price = f"{action['price_device_s']:,.0f} device-seconds"
        yield f"  {action['what']} {printable(action['job'])}: {printable(action['reason'])} ({price})"


def _facts(job: Mapping[str, object]) -> Iterator[str]:
    yield str(job["tier"])
    yield f"{job['devices']} of {job['most_devices']} devices"
    if job["promised"]:
        yield "promised"
    if isinstance(job["hour_share"], float):
        yield f"{job['hour_share']:.1%} of its last hour"
    if job["why_waits"]:
        yield f"waits: {printable(job['why_waits'])}"
