"""Every loop of an agent outlives an exception: it is logged, counted, and the loop runs again soon."""

from __future__ import annotations

import os
import time

import pytest
import structlog

from pulsetrain.agent.hub_connection import HubConnection
from pulsetrain.agent.link import Link
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.recorder import Recorder, RecorderPeriods
from pulsetrain.agent.sources import HardwareSource
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.collectors.machine.samples import metrics
from pulsetrain.core import supervisor
from pulsetrain.core.errors import Unavailable
from pulsetrain.protocol import packets
from pulsetrain.protocol.client import HubAddress
from pulsetrain.stream.spool.queue import Spool
from pulsetrain.stream.spool.shipper import Shipper, ShipperConfig
from tests.agent.real_processes import until

RESTARTED_S = 1.0
DELAY_S = 0.01


class Broken:
    """Raises at its first call, then does what it should."""

    def __init__(self, works):
        self.works, self.times_s = works, []

    def __call__(self, *args, **kwargs):
        self.times_s.append(time.monotonic())
        if len(self.times_s) == 1:
            raise RuntimeError("injected")
        return self.works(*args, **kwargs)


def check(loops, name, broken):
    """The loop failed once, said so, and ran again in time."""

    def status():
        return next(loop for loop in loops() if loop.name == name)

    assert until(lambda: len(broken.times_s) > 1 and status().turns > 0)
    assert status().failures == 1
    assert status().last_error == "RuntimeError: injected"
    assert broken.times_s[1] - broken.times_s[0] < RESTARTED_S


@pytest.fixture(autouse=True)
def short_delay(monkeypatch):
    """Nobody names the delay: each loop has the one of the supervisor, which is short here."""
    assert supervisor.RESTART_DELAY_S < RESTARTED_S
    for cls in (supervisor.LoopThread, supervisor.ThreadSupervisor):
        assert cls.__init__.__kwdefaults__["restart_delay_s"] == supervisor.RESTART_DELAY_S
        monkeypatch.setitem(cls.__init__.__kwdefaults__, "restart_delay_s", DELAY_S)


@pytest.fixture(autouse=True)
def logged():
    """Each failure is logged once, with the name of its loop."""
    with structlog.testing.capture_logs() as lines:
        yield lines
    failed = [line for line in lines if line["event"] == "loop_failed"]
    assert len(failed) == 1


class Sink:
    size_bytes, dropped_rows, dropped = 0, 0, {}

    def append(self, batch):
        return True


class Source:
    def __init__(self):
        self.take = Broken(lambda now_ns: [])


@pytest.mark.parametrize("name", ["drain_rings", "sample", "rare_sources", "echo_output"])
def test_recorder(name, monkeypatch):
    source, ranks = Source(), Broken(lambda: [])
    period_s = dict.fromkeys(["drain_rings", "sample", "rare_sources", "echo_output"], 60.0) | {name: 0.01}
    echo = Broken(lambda self, *, final=False: None)
    if name == "echo_output":
        monkeypatch.setattr("pulsetrain.agent.output.Echo.poll", lambda self, final=False: echo(self))
    recorder = Recorder(
        Sink(),
        ranks if name == "drain_rings" else lambda: [],
        RecorderPeriods(
            drain_s=period_s["drain_rings"],
            echo_s=period_s["echo_output"],
            sample_s=period_s["sample"],
            rare_s=period_s["rare_sources"],
        ),
        agent_pid=1,
        sources=(source,) if name == "sample" else (),
        rare_sources=(source,) if name == "rare_sources" else (),
    )
    recorder.start()
    broken = {"drain_rings": ranks, "echo_output": echo}.get(name, source.take)
    check(lambda: recorder.loops, name, broken)
    recorder.stop()


def test_hardware():
    class Sampler:
        blind = ""
        sample = Broken(lambda now_ns: metrics("n", [], now_ns))

    class KernelLog:
        blind = "none"

        def poll(self):
            return None

    source = HardwareSource((Sampler(),), KernelLog(), 0.01)
    source.start()
    check(lambda: source.loops, "hardware", Sampler.sample)
    source.stop()


def test_hub_link(monkeypatch):
    async def away(hub, on_message):
        raise Unavailable("nobody listens")

    opened = Broken(away)
    monkeypatch.setattr(HubConnection, "open", opened)
    link = Link(HubAddress(url="http://127.0.0.1:1", token=""), tuple, print)
    link.start()
    check(lambda: [link.loop], "hub_link", opened)
    link.close()


def test_shipper(tmp_path):
    spool = Spool(tmp_path / "spool", node="a")
    pending = Broken(list)
    spool.pending = pending

    class Transport:
        def close(self): ...

    shipper = Shipper(spool, Transport(), config=ShipperConfig(idle_s=0.01))
    shipper.start()
    check(lambda: [shipper.loop], "shipper", pending)
    shipper.stop()
    spool.close()


@pytest.mark.parametrize("name", ["replicate", "persist", "accept_peers"])
def test_checkpoint_service(name, monkeypatch, tmp_path):
    targets = {
        "replicate": "pulsetrain.checkpoint.peers.replicate.Replicator._record_saves",
        "persist": "pulsetrain.checkpoint.storage.commit.Committer.read_newest",
        "accept_peers": "pulsetrain.checkpoint.peers.server.tune",
    }
    broken = Broken(lambda *_, **__: None)
    if name == "accept_peers":
        monkeypatch.setattr(targets[name], broken)
    else:
        monkeypatch.setattr(targets[name], lambda self: broken())
    config = CheckpointServiceConfig(token="t", poll_s=0.01, storage=str(tmp_path))
    service = CheckpointService(config, job="j", node="a", address="127.0.0.1")
    if name == "accept_peers":
        _knock(service.peer_port)
        _knock(service.peer_port)
    check(lambda: service.loops, name, broken)
    service.close()


def _knock(port):
    import socket

    socket.create_connection(("127.0.0.1", port)).close()


def test_zygote_reader(monkeypatch):
    ours, theirs = os_pair()
    handled = Broken(lambda self, event: None)
    monkeypatch.setattr(Zygote, "_handle", lambda self, event: handled(self, event))
    zygote = Zygote(Ended(), ours)
    for number in range(2):
        theirs.send(b'{"op": "exit", "pid": %d, "code": 0}' % number)
    check(lambda: [zygote.loop], "zygote_reader", handled)
    theirs.close()
    assert until(lambda: zygote.dead)


def os_pair():

    return packets.pair()


class Ended:
    """A process that has ended."""

    pid = os.getpid()

    def wait(self, timeout_s=None):
        return 0

    def kill(self): ...
