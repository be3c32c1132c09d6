"""When NCCL RAS is asked, what counts as evidence, and what is said where there is none. No processes."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pulsetrain.analytics.hangs import ras, ras_lag
from pulsetrain.analytics.verdict import Finding, Healthy
from pulsetrain.analytics.watch import JobView
from pulsetrain.core.errors import UsageError
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.hub.hang_evidence import HangEvidence
from pulsetrain.hub.ras_reports import AGAIN_S, RasReports
from pulsetrain.protocol.messages import Reply
from pulsetrain.recovery.transitions import Phase
from tests.collectors.machine.fake_ras import communicator, report
from tests.hub.fakes import Clock
from tests.recovery.builders import S, job_snapshot

STUCK = report(communicator("0x1", [9, 9, 8, 9]))
CLOSED = {"why_not": "nothing listens at localhost:28028: no NCCL runs there, or its RAS is off"}
VIEW = JobView(job="j", attempt=0, now_ns=0)


def said(text):
    """What an agent makes of an answer, as it comes through the wire."""
    return json.loads(json.dumps({"report": ras_lag.pack(ras.parse(text))}))


class Journal:
    def __init__(self):
        self.events = []

    def event(self, kind, **more):
        self.events.append((kind, more["actor"], more["detail"]))


class FakeJob:
    """A job of two nodes of two ranks. `data` is what each node answers, None where it cannot be asked."""

    def __init__(self):
        self.phase, self.asked = Phase.RUNNING, []
        self.data = {"a": said(STUCK), "b": said(STUCK)}

    def snapshot(self):
        return job_snapshot(phase=self.phase)

    async def read_ras(self, node, limit_s):
        self.asked.append(node)
        await asyncio.sleep(0)
        data = self.data[node]
        return None if data is None else Reply(id=1, node=node, data=data)


def silent(silence_s=2.0):
    return [Healthy(analyzer="hang", numbers={"silence_ns": silence_s * S, "limit_ns": 3 * S})]


def hung(clock, rank="2"):
    return Finding(
        ts_ns=clock.wall_ns(), job="j", attempt=0, kind="hang", subject_type="rank", subject=rank,
        severity="critical", confidence=0.9, summary="hangs",
    )  # fmt: skip


@pytest.fixture
def site():
    clock, journal, job = Clock(), Journal(), FakeJob()
    reports = RasReports({"j": job}, journal, clock, TaskSupervisor(), stopped_s=2.0, pause_s=0)
    return SimpleNamespace(clock=clock, journal=journal, reports=reports, job=job)


async def consider(site, verdicts, after_s=0.25):
    site.clock.now_s += after_s
    site.reports.consider(site.job.snapshot(), VIEW, verdicts)
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.001)


def test_it_is_asked_twice_where_a_job_falls_silent_and_never_while_it_moves(site):
    async def story():
        await consider(site, silent(0.5))
        assert site.job.asked == []
        await consider(site, silent())
        await consider(site, silent())
        assert site.job.asked == ["a", "a"]
        await consider(site, silent(), after_s=AGAIN_S + 1)
        assert site.job.asked == ["a"] * 4

    asyncio.run(story())
    assert [(kind, why) for kind, why, _ in site.journal.events] == [("nccl_ras", "silence")] * 2
    assert site.journal.events[0][2]["communicators"][0]["behind"] == "2"


def test_a_hang_gets_what_ras_said_as_evidence_and_whether_both_name_one_rank(site):
    async def story():
        await consider(site, silent())
        (told,) = site.reports.attach("j", 0, [hung(site.clock)])
        assert told.evidence["nccl_ras"]["culprits"] == [2]
        assert told.evidence["nccl_ras"]["agrees"] is True
        assert told.evidence["nccl_ras"]["node"] == "a"
        (other,) = site.reports.attach("j", 0, [hung(site.clock, "1")])
        assert other.evidence["nccl_ras"]["agrees"] is False
        assert other.confidence == 0.9
        assert "nccl_ras" not in site.reports.attach("j", 1, [hung(site.clock)])[0].evidence
        site.clock.now_s += 600
        assert "nccl_ras" not in site.reports.attach("j", 0, [hung(site.clock)])[0].evidence

    asyncio.run(story())


def test_what_was_said_while_all_was_well_is_no_evidence(site):
    async def story():
        told = await site.reports.take("j", "ann")
        assert (told["why"], told["state"]) == ("ann", "lagging")
        assert "nccl_ras" not in site.reports.attach("j", 0, [hung(site.clock)])[0].evidence
        assert site.reports.latest("j")["why"] == "ann"

    asyncio.run(story())


def test_where_there_is_no_ras_it_is_one_line_of_the_log_and_nothing_else(site):
    site.job.data = {"a": CLOSED, "b": CLOSED}

    async def story():
        for _ in range(3):
            await consider(site, silent(), after_s=AGAIN_S + 1)
        assert site.reports.attach("j", 0, [hung(site.clock)]) == [hung(site.clock)]

    with capture_logs() as lines:
        asyncio.run(story())
    assert [line["event"] for line in lines] == ["no_nccl_ras"]
    assert site.journal.events == []
    assert "nothing listens" in site.reports.latest("j")["sentence"]


@pytest.mark.parametrize("data", [None, CLOSED, {}, {"report": {"processes": 3}}])
def test_another_node_is_asked_where_one_does_not_know(site, data):
    site.job.data["a"] = data
    assert asyncio.run(site.reports.take("j", "ann"))["node"] == "b"


def test_an_answer_that_comes_after_the_ranks_were_stopped_proves_nothing(site):
    async def story():
        reading = asyncio.create_task(site.reports.take("j", "ann"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        site.job.phase = Phase.SUSPENDING
        return await reading

    assert asyncio.run(story())["state"] == "unknown"
    assert site.journal.events == []


def test_an_unknown_job_is_one_line(site):
    with pytest.raises(UsageError, match="jobs here: j"):
        site.reports.latest("k")


def test_two_kinds_of_evidence_are_both_read_and_both_attached(site):
    class Stacks:
        considered = 0

        def consider(self, job, view, verdicts):
            self.considered += 1

        def attach(self, job, attempt, findings):
            return [*findings, *findings]

    async def story():
        stacks = Stacks()
        evidence = HangEvidence(stacks, site.reports)
        evidence.consider(site.job.snapshot(), VIEW, silent())
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)
        told = evidence.attach("j", 0, [hung(site.clock)])
        assert stacks.considered == 1
        assert ["nccl_ras" in f.evidence for f in told] == [True, True]

    asyncio.run(story())


def test_a_later_job_of_the_same_name_is_not_shown_the_report_of_the_one_before(site):
    async def story():
        await consider(site, silent())
        assert site.reports.latest("j")
        site.reports.forget("j")
        assert site.reports.latest("j") == {}

    asyncio.run(story())
