"""Standbys: a light check when one joins, every ten minutes, after a probation, and before a promotion.

A standby under a cordon is not promoted. Its reason ends only once the machine has been clean for a while and
has passed a light check.

While a job trains, only other standbys can be partners in all-gathers. So one that is alone has passed
nothing but its self-check. Before it is promoted all ranks are stopped, and nodes that were active are its
partners.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from pulsetrain.diagnostics.node_check import LEVELS
from pulsetrain.recovery import arithmetic_checks, checks, returning, scheduling
from pulsetrain.recovery.checks import CheckReport
from pulsetrain.recovery.memory import NodeMemory
from pulsetrain.recovery.nodes import Node
from pulsetrain.recovery.state import JobState
from pulsetrain.recovery.transitions import Phase

LIGHT = "light"
STORE = "standby checks"
NEW = "it has not passed a light check yet"
PROBATION = "probation: "
NEVER_PASSED = "it passed beside no other node, and others passed"
BUSY = "others use its memory, so it could not be checked"
AGAIN_S = 30.0  # after a check that failed, or one that could not end a probation
LATE_S = 30.0  # so long after it was due the next periodic check is over
PARTNERS = 2  # good nodes, beside which a node must fail to count as faulty


def welcome(job: JobState, node: Node, past: NodeMemory | None) -> None:
    """A node joined. `past` is what the job remembers of it.

    One that the controller evicted serves a probation. One that joins a job that has begun is checked before
    it can be promoted. One that a new hub hears of stays under its cordon, for its whole time anew. Where the
    job forms, agents that were started anew are of another run, and count as new: but for a machine that the
    controller evicted.
    """
    now_s = job.services.clock.monotonic_s()
    node.checked_s = node.clean_since_s = now_s
    held = job.phase is Phase.PREEMPTED and not job.members.world  # it was not launched yet by this hub
    forming = job.phase is Phase.FORMING or held
    same_agent = past is not None and past.agent.is_same(node.agent)
    other_run = past is None or not (same_agent or _had_to_go(past))
    if job.services.policy.observe_only or (forming and other_run):
        return
    if not forming:
        node.cordon, node.checked_s = NEW, float("-inf")
    if past is None:
        return
    if past.cordon:
        node.cordon, node.probation_s = past.cordon, past.probation_s
    elif past.evicted_by == "controller" and not (forming and same_agent):
        node.cordon = f"{PROBATION}it was evicted for {past.evicted}"
        node.probation_s = job.services.policy.probation_s
        job.write("probation", {"reason": past.evicted, "seconds": node.probation_s}, node=node.name)
        job.remember(node)
    elif not forming:
        job.forget(node.name)


def _had_to_go(past: NodeMemory) -> bool:
    return past.evicted_by == "controller" or past.cordon.startswith(PROBATION)


_AWAKE = (Phase.FORMING, Phase.STARTING, Phase.RUNNING, Phase.WAITING)
"""Phases in which a check of standbys disturbs no check of the whole job. The devices of a pre-empted job are
somebody else's."""


def take_due(job: JobState) -> list[Node]:
    """The standbys that are to be checked now. They count as checked from now on."""
    policy, now_s = job.services.policy, job.services.clock.monotonic_s()
    if policy.observe_only or job.phase not in _AWAKE:
        return []
    free = (n for n in job.members.reserves() if not n.being_checked)
    usable = (n for n in free if job.members.may_use(n))  # others train on the rest
    reserves = [n for n in usable if n.cordon or job.phase is not Phase.FORMING]
    nodes = [n for n in reserves if _due(n, now_s, policy.standby_check_s, job)]
    for node in nodes:
        node.checked_s = now_s
    return nodes


def _due(node: Node, now_s: float, period_s: float, job: JobState) -> bool:
    age_s = now_s - node.checked_s
    if age_s >= period_s:
        return True
    return bool(node.cordon) and age_s >= AGAIN_S and _clean(job, node, now_s)


def _clean(job: JobState, node: Node, now_s: float) -> bool:
    """Whether a node under a cordon has served its probation."""
    return node.name not in job.hardware.open and now_s - node.clean_since_s >= node.probation_s


async def check_due(job: JobState, nodes: Sequence[Node]) -> None:
    """Run the light check on those that `take_due` gave."""
    await check(job, nodes)


async def check(
    job: JobState, nodes: Sequence[Node], *, level: str = LIGHT, store: str = STORE, actor: str = "controller"
) -> CheckReport:
    """Run a check on standbys. One that fails is cordoned, one that passed may be readmitted.

    One that lost its connection meanwhile is checked again when it is back. Its machine has not failed. A hub
    that only observes cordons nobody.
    """
    stands = job.phase is Phase.WAITING and not returning.awaited(job)
    stopped = job.members.active() if stands else []
    beside = _partners(job, stopped, len(nodes))
    for node in nodes:
        node.being_checked, node.checked_s = True, job.services.clock.monotonic_s()
    try:
        report = await _run(job, nodes, beside, level, store)
    finally:
        for node in nodes:
            node.being_checked = False
    note_passed(job, [*nodes, *beside], report)
    _tell(job, nodes, beside, report, actor)
    if not job.services.policy.observe_only:
        _act_on(job, nodes, report)
    return report


async def _run(
    job: JobState, nodes: Sequence[Node], beside: Sequence[Node], level: str, store: str
) -> CheckReport:
    everybody, policy = [*nodes, *beside], job.services.policy
    report = await checks.run(everybody, policy, job.next_id, level=LEVELS[level], store_job=store)
    return replace(report, failed={**report.failed, **await arithmetic_checks.of_standbys(job, nodes)})


def _act_on(job: JobState, nodes: Sequence[Node], report: CheckReport) -> None:
    now_s = job.services.clock.monotonic_s()
    for node in nodes:
        if node.name in report.unreached:
            node.checked_s = float("-inf")
        elif node.name in report.failed:
            _hold_back(job, node, report.failed[node.name])
        elif node.cordon and _clean(job, node, now_s) and _has_passed(node, report):
            job.write("uncordon", {"reason": node.cordon}, node=node.name)
            if node.cordon.startswith(PROBATION):
                scheduling.give_back(job, node.name)
            node.cordon = ""
            job.forget(node.name)


def _has_passed(node: Node, report: CheckReport) -> bool:
    """Whether a node that did not fail has passed: beside another node, or by itself where it had no partner.

    One whose GPU somebody else uses took no part.
    """
    return node.name in report.passed or (report.verdict is None and node.name not in report.busy)


def note_passed(job: JobState, nodes: Sequence[Node], report: CheckReport) -> None:
    """Nodes that passed beside another one are well enough to be promoted for a while."""
    passed, now_s = report.passed, job.services.clock.monotonic_s()
    for node in nodes:
        if node.name in passed:
            node.passed_s = now_s


async def check_before_promotion(job: JobState) -> Set[str]:
    """All ranks are stopped. Standbys that may be promoted now and have passed no light check lately run it.

    Their partners are nodes that stay in the world. A standby that fails is cordoned. An active node that
    fails has failed the check of the job. Where nothing passed, nobody can be blamed: then the standbys are
    promoted all the same, but for one whose memory others use. Its ranks would find none. Returns the nodes
    that lost their connection meanwhile.
    """
    limit_s, late = job.services.policy.promotion_check_s, _late(job)
    if not late or limit_s <= 0 or job.services.policy.observe_only:
        return set()
    stay = [node for node in job.members.active() if node.name not in job.members.failed]
    beside = _partners(job, stay, len(late))
    nodes = [*late, *beside]
    if len(nodes) < 2:
        return set()
    level = replace(LEVELS[LIGHT], limit_s=min(limit_s, LEVELS[LIGHT].limit_s))
    report = await checks.beside_others(nodes, job.services.policy, job.next_id, level)
    busy = dict.fromkeys({node.name for node in late} & report.busy, BUSY)
    never: set[str] = set()
    if report.passed:
        never = {n.name for n in late} - report.passed - report.failed.keys() - report.unreached.keys()
    unknown = dict.fromkeys(never, NEVER_PASSED) | busy
    report = replace(report, failed=unknown | dict(report.failed))
    note_passed(job, nodes, report)
    _tell(job, late, beside, report)
    for node in late:
        if node.name in report.unreached:
            node.checked_s = float("-inf")
        elif node.name in report.failed:
            # One that was too late for this check, or is busy, has not failed: it tries again in a moment.
            probation_s = 0.0 if node.name in unknown else None
            _hold_back(job, node, report.failed[node.name], probation_s=probation_s)
    names = {node.name for node in beside}
    job.members.failed |= {name: why for name, why in report.failed.items() if name in names}
    return report.unreached.keys()


def _late(job: JobState) -> list[Node]:
    """Standbys that passed no light check lately, where one of those that are promoted next is among them."""
    members, policy = job.members, job.services.policy
    if not members.world:
        return []  # a first world is formed: nobody is promoted
    size = max(job.resizing.size, job.resizing.fit(members.available(forming=False)))
    missing = max(0, size - len(members.healthy()))
    losses = job.back_off.losses
    spare = [n for n in members.standbys() if n.name not in members.failed]
    spare.sort(key=lambda n: (losses[n.name], n.name))
    oldest_s = job.services.clock.monotonic_s() - policy.standby_check_s - LATE_S
    late = [node for node in spare if node.passed_s < oldest_s]
    return late if any(node in late for node in spare[:missing]) else []


def _partners(job: JobState, nodes: Sequence[Node], count: int) -> list[Node]:
    """As many of these nodes as `count` standbys need, so that a faulty one is told from its partners."""
    usable = sorted((n for n in nodes if n.usable and job.members.may_use(n)), key=lambda n: n.name)
    return usable[: count + PARTNERS]


def _tell(
    job: JobState,
    nodes: Sequence[Node],
    beside: Sequence[Node],
    report: CheckReport,
    actor: str = "controller",
) -> None:
    verdict = report.verdict
    detail = {
        "nodes": [n.name for n in nodes],
        "beside": [n.name for n in beside],
        "failed": dict(report.failed),
        "unreached": dict(report.unreached),
        "inconclusive": verdict.reason if verdict else "",
        "seconds": report.seconds,
    }
    job.write("standby_check", detail, actor=actor)


def cordon_reason(node: Node, reason: str) -> str:
    """What a cordon is called from now on. A probation stays one, so that its machine is given back."""
    return f"{PROBATION}{reason}" if node.cordon.startswith(PROBATION) else reason


def _hold_back(job: JobState, node: Node, reason: str, *, probation_s: float | None = None) -> None:
    """A standby failed the light check. It is not promoted until it was well for a while and passes one.

    `probation_s` is how long. None: for as long as the policy says.
    """
    node.cordon = cordon_reason(node, f"light check: {reason}")
    node.clean_since_s = job.services.clock.monotonic_s()
    node.probation_s = job.services.policy.probation_s if probation_s is None else probation_s
    node.passed_s = float("-inf")
    job.remember(node)
    job.write("cordon", {"reason": node.cordon, "response": "cordon"}, node=node.name)
