"""From the signs in heartbeats to findings on machines: a fake clock, no store, no processes."""

import asyncio
from dataclasses import replace

import pytest

from pulsetrain.core.errors import ConfigError
from pulsetrain.hub.assembly import site_tables
from pulsetrain.hub.hardware_watch import HardwareWatch
from pulsetrain.protocol.messages import GpuIdentity, HardwareSign, decode, encode
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock, FakeJob, Sink
from tests.recovery.builders import S, heartbeat, hello, node_snapshot

XID = HardwareSign(kind="xid", device="0000:18:00", code=79, first_ns=S, last_ns=S, times_ns=(S,))
GPUS = (GpuIdentity(uuid="GPU-1", pci="00000000:18:00.0", serial="7", numa=1),)


def node(name, *signs, **changes):
    beat = heartbeat(name, hardware=signs)
    return node_snapshot(name, heartbeat=beat, hello=hello(name, gpus=GPUS), **changes)


class Site:
    """A watch over one job."""

    def __init__(self, *nodes):
        self.job, self.sink = FakeJob(nodes=nodes), Sink()
        self.watch = HardwareWatch({"j": self.job}, self.sink, site_tables(""), Clock())

    def look(self, *nodes, **changes):
        self.job.changes.update(changes)
        if nodes:
            self.job.changes["nodes"] = nodes
        asyncio.run(self.watch.turn())
        return self.sink.still_open.get(("j", "hardware"), [])


def test_a_sign_in_a_heartbeat_is_a_finding_with_what_is_done_about_it():
    site = Site(node("a"), node("b", XID))
    (finding,) = site.look()
    assert (finding.subject, finding.evidence["response"]) == ("b/GPU-1", "evict_now")
    site.look()
    assert site.sink.new == [finding]


def test_standbys_are_looked_at_and_nodes_that_are_gone_are_not():
    site = Site(node("a"), node("z", XID, state=NodeState.STANDBY), node("q", XID, state=NodeState.EVICTED))
    assert [f.subject for f in site.look()] == ["z/GPU-1"]
    assert site.look(node("a"), node("z", XID, state=NodeState.LOST)) == []


def test_a_sign_that_is_gone_ends_its_finding_after_some_looks():
    site = Site(node("b", XID))
    site.look()
    for _ in range(3):
        assert site.look(node("b"))
    assert site.look(node("b")) == []


def test_healthy_machines_and_jobs_that_are_over_are_not_reported():
    site = Site(node("a"), node("b"))
    site.look()
    site.look(node("b", XID), phase=Phase.FINISHED)
    assert (site.sink.new, site.sink.still_open) == ([], {})


def test_the_next_attempt_is_told_of_what_goes_on():
    site = Site(node("b", XID))
    site.look()
    (finding,) = site.look(attempt=1)
    assert (finding.attempt, len(site.sink.new)) == (1, 2)


def test_what_happened_before_the_attempt_and_asks_for_nothing_is_not_told_again():
    old, new = (replace(XID, code=31, last_ns=at * S) for at in (899, 901))
    assert Site(node("b", old)).look() == []
    assert len(Site(node("b", new)).look()) == 1
    assert len(Site(node("b", replace(XID, last_ns=899 * S))).look()) == 1


def test_signs_and_identities_survive_the_way_to_the_hub():
    for signs in ((), (XID,), (XID, HardwareSign(kind="gpu_lost", device="GPU-1"))):
        beat = heartbeat("b", hardware=signs)
        assert decode(encode(beat)) == beat
    assert decode(encode(hello("b", gpus=GPUS))) == hello("b", gpus=GPUS)


def test_a_site_s_tables_are_read_when_the_hub_starts(tmp_path):
    (tmp_path / "hardware_policy.toml").write_text('[[policy]]\nname = "gpu_lost"\nresponse = "often"')
    with pytest.raises(ConfigError, match="often"):
        site_tables(str(tmp_path))


def test_a_job_that_is_forgotten_and_comes_again_is_told_anew():
    site = Site(node("b", XID))
    site.look()
    site.watch.forget("j")
    assert site.watch._dedup == {}
    site.look()
    assert len(site.sink.new) == 2


class CountingPolicy:
    """Counts how often a response is chosen."""

    def __init__(self, policy):
        self.policy, self.chosen = policy, 0

    def choose(self, case):
        self.chosen += 1
        return self.policy.choose(case)


def test_signs_that_say_the_same_are_not_read_again():
    site, tables = Site(node("a", XID), node("b", XID)), site_tables("")
    counting = CountingPolicy(tables.responses)
    site.watch = HardwareWatch({"j": site.job}, site.sink, replace(tables, responses=counting), Clock())
    first = site.look()
    assert site.look(node("a", XID), node("b", XID)) == first
    assert counting.chosen == 2
    site.look(node("a", XID), node("b", replace(XID, count=2)))
    assert counting.chosen == 3
    site.look(attempt=1)
    assert counting.chosen == 5


def test_a_thousand_sick_machines_do_not_stop_the_hub():
    async def scenario():
        site, turns = Site(*(node(f"n{i}", XID) for i in range(20))), 0
        turn = asyncio.create_task(site.watch.turn())
        while not turn.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20
        assert len(site.sink.new) == 20

    asyncio.run(scenario())
