"""Checks of links and arithmetic: workers do them, and one sink is there at a time."""

import signal

from pulsetrain.agent.check_commands import CheckCommands
from pulsetrain.agent.rdma_ends import RdmaEnds
from pulsetrain.diagnostics.perftest import RdmaEnd
from pulsetrain.protocol.messages import ArithmeticCheck, LinkSend, LinkSink

NO_RDMA = RdmaEnds(why_not="it has no RDMA port")
NEAR = RdmaEnd(device="mlx5_0", port=1, cpus=(0,))
FAR = RdmaEnd(device="mlx5_0", port=1, cpus=(4,))
RDMA = RdmaEnds(
    ends={"mlx5_0/1": {"": NEAR, "1": FAR}}, active=frozenset({"mlx5_0/1"}), speeds={"mlx5_0/1": 4e11}
)


def made(memory=None, rdma=NO_RDMA):
    return CheckCommands(lambda address: memory or {}, lambda address: rdma)


class Workers:
    """Keeps what is asked for, and answers at once."""

    def __init__(self):
        self.calls, self.signals, self.served = [], [], 0

    def call(self, target, kwargs, timeout_s):
        self.calls.append((target.rpartition(":")[2], kwargs, timeout_s))
        return {"ok": True}

    def serve(self, target, kwargs, timeout_s):
        self.served += 1
        self.calls.append((target.rpartition(":")[2], kwargs, timeout_s))
        return 500 + self.served, {"port": 9000 + self.served}

    def signal(self, pid, signum):
        self.signals.append((pid, signum))


def test_a_new_sink_ends_the_one_before_and_0_seconds_end_the_last():
    workers, checks = Workers(), made()
    ports = [checks.link_sink(workers, "10.0.0.1", LinkSink(id=i, seconds=30))["port"] for i in range(2)]
    assert ports == [9001, 9002]
    assert workers.calls[0][:2] == ("host_sink", {"address": "10.0.0.1", "seconds": 30})
    assert checks.link_sink(workers, "10.0.0.1", LinkSink(id=3, seconds=0)) == {"port": 0, "memory_ports": {}}
    checks.link_sink(workers, "10.0.0.1", LinkSink(id=4, seconds=0))
    assert workers.signals == [(501, signal.SIGKILL), (502, signal.SIGKILL)]


def test_each_other_memory_node_has_a_sink_on_its_processors_and_all_end_together():
    workers, checks = Workers(), made({1: (4, 5), 2: (8,)})
    answer = checks.link_sink(workers, "10.0.0.1", LinkSink(id=1, seconds=30))
    assert (answer["port"], answer["memory_ports"]) == (9001, {"1": 9002, "2": 9003})
    assert [kwargs.get("cpus") for _, kwargs, _ in workers.calls] == [None, [4, 5], [8]]
    checks.link_sink(workers, "10.0.0.1", LinkSink(id=2, seconds=0))
    assert [pid for pid, _ in workers.signals] == [501, 502, 503]


def test_a_node_without_rdma_says_why():
    answer = made().link_sink(Workers(), "10.0.0.1", LinkSink(id=1, seconds=30))
    assert answer["rdma"] == {"port": 0, "ports": {}, "why_not": "it has no RDMA port"}


def test_a_node_with_rdma_hosts_servers_for_its_ports_and_ends_that_with_the_sinks():
    workers, checks = Workers(), made(rdma=RDMA)
    answer = checks.link_sink(workers, "10.0.0.1", LinkSink(id=1, seconds=30))
    ports = {"mlx5_0/1": {"active": True, "memories": ["1"], "speed_bits_per_s": 4e11}}
    assert answer["rdma"] == {"port": 9002, "ports": ports, "why_not": ""}
    name, kwargs, _ = workers.calls[1]
    assert (name, kwargs["seconds"]) == ("host_servers", 30)
    assert kwargs["ends"]["mlx5_0/1"]["1"] == {"device": "mlx5_0", "port": 1, "gid_index": -1, "cpus": (4,)}
    checks.link_sink(workers, "10.0.0.1", LinkSink(id=2, seconds=0))
    assert [pid for pid, _ in workers.signals] == [501, 502]


def test_by_rdma_a_node_sends_from_the_port_of_that_name():
    workers = Workers()
    command = LinkSend(id=1, address="10.0.0.2", port=7, seconds=0.5, rdma_port="mlx5_0/1", memory="1")
    made(rdma=RDMA).link_send(workers, "10.0.0.1", command)
    (name, kwargs, timeout_s) = workers.calls[0]
    assert name == "report"
    assert kwargs == {
        "address": "10.0.0.2", "port": 7, "name": "mlx5_0/1", "memory": "1", "seconds": 0.5,
        "source": "10.0.0.1", "bits_per_s": 0.0,
        "end": {"device": "mlx5_0", "port": 1, "gid_index": -1, "cpus": (0,)},
    }  # fmt: skip
    assert timeout_s > 10
    assert made().link_send(workers, "10.0.0.1", command) == {"error": "mlx5_0/1 is gone"}


def test_a_node_sends_from_its_own_address_at_the_rate_that_is_allowed():
    workers = Workers()
    command = LinkSend(id=1, address="10.0.0.2", port=7, seconds=0.5, bits_per_s=1e8)
    assert CheckCommands().link_send(workers, "10.0.0.1", command) == {"ok": True}
    (name, kwargs, timeout_s) = workers.calls[0]
    assert name == "report"
    assert kwargs == {
        "address": "10.0.0.2", "port": 7, "seconds": 0.5, "source": "10.0.0.1", "bits_per_s": 1e8,
    }  # fmt: skip
    assert timeout_s > 0.5


def test_each_other_interface_has_a_sink_of_its_own_that_is_bound_to_it():
    workers, checks = Workers(), made()
    answer = checks.link_sink(workers, "10.0.0.1", LinkSink(id=1, seconds=30), {"eth1": "10.1.0.1"})
    assert answer["rails"] == {"eth1": {"address": "10.1.0.1", "port": 9002}}
    assert workers.calls[1][:2] == ("host_sink", {"address": "10.1.0.1", "seconds": 30, "device": "eth1"})
    checks.link_sink(workers, "10.0.0.1", LinkSink(id=2, seconds=0))
    assert [pid for pid, _ in workers.signals] == [501, 502]


def test_a_node_sends_out_of_the_interface_that_is_asked_for():
    workers = Workers()
    command = LinkSend(id=1, address="10.1.0.2", port=7, seconds=0.5, rail="eth1")
    made().link_send(workers, "10.0.0.1", command, lambda address: {"eth1": "10.1.0.1"})
    (_, kwargs, _) = workers.calls[0]
    assert (kwargs["source"], kwargs["device"]) == ("10.1.0.1", "eth1")
    gone = made().link_send(workers, "10.0.0.1", command, lambda address: {})
    assert gone == {"unmeasured": "eth1 has no link or no address"}


def test_the_check_of_arithmetic_has_time_to_start():
    workers = Workers()
    CheckCommands().arithmetic(workers, ArithmeticCheck(id=1, seconds=5))
    assert workers.calls[0][:2] == ("run", {"seconds": 5})
    assert workers.calls[0][2] > 15
