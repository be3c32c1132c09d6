"""A whole hub without sockets: whatever breaks in one of its loops, the hub goes on and says so."""

import asyncio

import pytest
from structlog.testing import capture_logs

from pulsetrain.hub import assembly, notifier, over_jobs
from pulsetrain.hub.check_watch import CheckWatch
from pulsetrain.hub.event_writer import EventWriter
from pulsetrain.hub.hardware_watch import HardwareWatch
from pulsetrain.hub.live_watch import LiveWatch
from pulsetrain.hub.loop_health import LoopHealth
from pulsetrain.hub.ras_reports import RasReports
from pulsetrain.hub.reporter import Reporter
from pulsetrain.hub.stacks import Stacks
from pulsetrain.hub.store_analysis import StoreAnalysis
from pulsetrain.hub.switch_watch import SwitchWatch
from pulsetrain.recovery import actions
from pulsetrain.recovery.job import Job
from pulsetrain.stream.store.intake import Intake
from tests.recovery.builders import hello
from tests.recovery.fakes import FakeAgent


async def seconds_pass(hub, agents, seconds):
    for _ in range(round(seconds / 0.5)):
        for agent in agents:
            agent.send_heartbeat()
        await hub.time.pass_(0.5)


async def train(hub, parts):
    agents = [FakeAgent(parts.controller, hello(name)) for name in "ab"]
    await seconds_pass(hub, agents, 2)
    assert parts.report.status()["jobs"][0]["state"] == "running"
    return agents


def row_of(parts, name):
    return next(row for row in parts.report.status()["loops"] if row["loop"] == name)


def fail_once(monkeypatch, owner, name):
    """Replace a function by one that raises at its next call and then works again."""
    original, failed = getattr(owner, name), []

    def broken(*args, **more):
        if not failed:
            failed.append(True)
            raise RuntimeError("thrown by the test")
        return original(*args, **more)

    monkeypatch.setattr(owner, name, broken)


SABOTAGE = [
    ("controller", Job, "tick"),
    ("live watch", LiveWatch, "look"),
    ("store analysis", StoreAnalysis, "_look"),
    ("notifications", notifier, "deliver"),
    ("loop health", LoopHealth, "look"),
]


@pytest.mark.parametrize(("loop", "owner", "function"), SABOTAGE)
def test_a_loop_that_raises_goes_on_and_lost_nodes_are_still_found(hub, monkeypatch, loop, owner, function):
    async def scenario():
        parts = hub.make()
        parts.loops.start()
        a, b = await train(hub, parts)
        fail_once(monkeypatch, owner, function)
        before = row_of(parts, loop)
        with capture_logs() as lines:
            await seconds_pass(hub, [a, b], 4)  # the slowest of these loops turns every two seconds
        broken = row_of(parts, loop)
        assert [line["loop"] for line in lines if line["event"] == "loop_failed"] == [loop]
        assert (broken["failures"], broken["last_error"]) == (1, "RuntimeError: thrown by the test")
        assert broken["turns"] > before["turns"]
        assert broken["age_s"] <= 2
        text = parts.intake.metrics.text().decode()
        assert f'pulsetrain_loop_failures_total{{loop="{loop}",node="",process="hub"}} 1.0' in text
        assert f'pulsetrain_loop_age_seconds{{loop="{loop}",node="",process="hub"}}' in text
        b.drop()
        a.quiet_ns = 3 * 10**9  # its ranks wait for those of b
        await seconds_pass(hub, [a], 3)
        nodes = {n["node"]: n["state"] for n in parts.report.status()["jobs"][0]["nodes"]}
        assert nodes == {"a": "active", "b": "lost"}
        await parts.loops.stop()
        parts.alerts.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_an_action_that_raises_is_carried_out_again_and_the_job_recovers(hub, monkeypatch):
    async def scenario():
        parts = hub.make()
        parts.loops.start()
        agents = await train(hub, parts)
        fail_once(monkeypatch, actions, "carry_out")
        agents[0].rank_exits(0, -9)
        await seconds_pass(hub, agents, 2)
        job = parts.report.status()["jobs"][0]
        assert (job["state"], job["attempt"]) == ("running", 1)
        assert row_of(parts, "job j")["failures"] == 1
        await parts.loops.stop()
        parts.alerts.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_loop_that_keeps_failing_is_an_alert_until_it_works_again(hub, monkeypatch):
    def broken(*args):
        raise RuntimeError("thrown by the test")

    async def scenario():
        parts = hub.make()
        parts.loops.start()
        agents = await train(hub, parts)
        with monkeypatch.context() as patch, capture_logs():
            patch.setattr(LiveWatch, "look", broken)
            await seconds_pass(hub, agents, 4)
            (alert,) = [a for a in parts.alerts.list() if a["subject"] == "hub loop live watch"]
            assert alert["state"] == "error"
            assert "turns in a row failed: RuntimeError: thrown by the test" in alert["summary"]
        await seconds_pass(hub, agents, 3)
        (alert,) = [a for a in parts.alerts.list() if a["subject"] == "hub loop live watch"]
        assert alert["state"] == "resolved"
        await parts.loops.stop()
        parts.alerts.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_the_writer_thread_goes_on_after_an_exception(hub, monkeypatch):
    parts = hub.make()
    fail_once(monkeypatch, EventWriter, "_insert")
    turned = []
    monkeypatch.setattr(parts.writer._loop, "_restart_delay_s", 0.0)
    original = parts.writer.turn
    monkeypatch.setattr(parts.writer._loop, "_turn", lambda: turned.append(1) or original())
    parts.writer.event("first", job="j", attempt=0, detail={})
    with capture_logs():
        parts.writer.start()
        while len(turned) < 2:
            pass
    parts.writer.event("second", job="j", attempt=0, detail={})
    parts.writer.close()
    assert [row["kind"] for _, row in parts.store.rows] == ["second"]
    assert (parts.writer.status().failures, parts.writer.written_rows) == (1, 1)
    parts.alerts.close()


def test_the_intake_thread_goes_on_after_an_exception(hub, monkeypatch):
    parts = hub.make()
    fail_once(monkeypatch, Intake, "run")
    monkeypatch.setattr(parts.intake._thread, "_restart_delay_s", 0.0)
    monkeypatch.setattr(parts.intake._queue, "wait", lambda: None)
    with capture_logs():
        parts.intake.start()
        while not parts.intake.status().turns:
            pass
    parts.intake.close()
    assert row_of(parts, "intake")["failures"] == 1
    parts.alerts.close()


def test_every_watch_hears_of_jobs_that_are_forgotten(hub, monkeypatch):
    made, heard = [], []
    original = assembly._detection
    monkeypatch.setattr(assembly, "_detection", lambda *parts: made.append(original(*parts)) or made[0])
    for each in (
        LiveWatch,
        HardwareWatch,
        CheckWatch,
        SwitchWatch,
        StoreAnalysis,
        Stacks,
        RasReports,
        Reporter,
    ):
        monkeypatch.setattr(each, "forget", lambda self, job: heard.append((type(self), job)))
    parts = hub.make()
    jobs = {f"j{i}": over_jobs.UNRECORDED_KEPT_S for i in range(100)}
    monkeypatch.setattr(parts.controller, "over_s", lambda: jobs)
    asyncio.run(made[0].over.turn())
    assert len(set(heard)) == len(heard) == 8 * len(jobs)
    parts.alerts.close()
