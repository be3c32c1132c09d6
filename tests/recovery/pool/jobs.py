"""Jobs and pools for the tests of the policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from pulsetrain.recovery.pool.decide import decide
from pulsetrain.recovery.pool.demand import JobDemand, Prices, Tier

EAGER = Prices(reserve_ratio=0.0)


def job(name, tier, blocks, *, unit=1, least=None, order=0, **more):
    return JobDemand(
        name=name, tier=Tier(tier), unit=unit, least=least or blocks, most=blocks, order=order, **more
    )


def carry_out(slots, jobs, prices=EAGER, *, still_s=0.0):
    """The jobs after one decision, and what it did. Those that changed have been still for `still_s`."""
    decision = decide(slots, jobs, prices)
    after = {action.job: action.after for action in decision.actions}
    jobs = [
        replace(
            j,
            promised=j.name in decision.promised,
            placed=after.get(j.name, j.placed),
            still_s=still_s if j.name in after else j.still_s,
        )
        for j in jobs
    ]
    return jobs, decision


def rows(decision):
    return [(a.what, a.job, dict(a.after)) for a in decision.actions]


@st.composite
def demands(draw, number):
    unit = draw(st.sampled_from([1, 1, 2, 4]))
    step = draw(st.sampled_from([1, 1, 2]))
    least = draw(st.integers(1, 4))
    most = -(-draw(st.integers(least, 8)) // step) * step
    return JobDemand(
        name=f"j{number}",
        tier=draw(st.sampled_from(list(Tier))),
        unit=unit,
        least=least,
        most=most,
        step=step,
        order=draw(st.integers(0, 3)),
    )


@st.composite
def pools(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6))
    return {f"n{index}": size for index, size in enumerate(sizes)}


@st.composite
def histories(draw):
    """A pool, and jobs that arrive in groups, with nodes that fail between."""
    slots = draw(pools())
    count = draw(st.integers(1, 9))
    jobs = [draw(demands(number)) for number in range(count)]
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=2)))
    failures = draw(st.lists(st.sampled_from(sorted(slots)), max_size=2))
    return slots, jobs, cuts, failures


@st.composite
def crowded(draw):
    """A pool of machines of four devices, small jobs on some of them, and larger ones that come after."""
    slots = {host: 4 for host in "wxyz"[: draw(st.integers(2, 4))]}
    small = []
    for number in range(draw(st.integers(1, 5))):
        least = draw(st.integers(1, 2))
        tier = draw(st.sampled_from([Tier.BASIC, Tier.STANDARD]))
        most = draw(st.integers(least, 6))
        small.append(JobDemand(name=f"s{number}", tier=tier, unit=1, least=least, most=most, order=number))
    large = []
    for number in range(draw(st.integers(1, 3))):
        tier, unit, blocks = (
            draw(st.sampled_from(list(Tier))),
            draw(st.sampled_from([2, 4])),
            draw(st.integers(1, 2)),
        )
        large.append(
            JobDemand(name=f"l{number}", tier=tier, unit=unit, least=1, most=blocks, order=9 + number)
        )
    leaves = draw(st.lists(st.sampled_from([each.name for each in small]), unique=True))
    return slots, small, large, leaves
