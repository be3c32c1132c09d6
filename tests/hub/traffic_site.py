"""Nodes in network namespaces, with a port for the hub and a shaped port for the job's traffic.

The agents reach the hub over `ctl`, and the ranks each other over `data`. So the job's network can fail
while every agent is still heard. Needs root, ip and tc.
"""

import itertools
import os
import signal
import subprocess
import sys

from tests.agent.real_processes import until, with_environment
from tests.hub.test_real_job import Site
from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from machinecheck.namespaces import bucket, missing, shell  # as the benchmark itself does

MISSING = missing()
NUMBERS = itertools.count()
RATE_MBIT = 200


class TrafficSite(Site):
    """A hub, and nodes whose links can be cut."""

    def __init__(self, folder):
        super().__init__(folder)
        number = next(NUMBERS)
        self.tag, self.names = f"p{os.getpid() % 10000}x{number}", []
        self.network = f"10.{100 + (os.getpid() + number) % 100}"
        self.at = f"{self.network}.1.254"
        shell(
            f"""ip link add {self.tag}c type bridge
            ip addr add {self.at}/24 dev {self.tag}c
            ip link set {self.tag}c up
            ip link add {self.tag}d type bridge
            ip link set {self.tag}d up"""
        )

    def space(self, name):
        return f"{self.tag}{name}"

    def add(self, name):
        """A namespace with both ports."""
        number, space = len(self.names) + 1, self.space(name)
        self.names.append(name)
        shell(f"ip netns add {space}\nip -n {space} link set lo up")
        for part, kind in ((1, "ctl"), (2, "data")):
            outer, bridge = f"{space}{kind[0]}", f"{self.tag}{kind[0]}"
            shell(
                f"""ip link add {outer} type veth peer name {kind} netns {space}
                ip link set {outer} master {bridge} up
                ip -n {space} addr add {self.network}.{part}.{number}/24 dev {kind}
                ip -n {space} link set {kind} up"""
            )
        shell(f"tc -n {space} qdisc add dev data root {bucket(RATE_MBIT)}")
        return f"{self.network}.2.{number}"

    def start_hub(self, port=0):
        self.hub = self.spawn(
            *("serve", "--data", str(self.folder / "hub"), "--port", str(port), "--no-dashboard"),
            *("--host", self.at),
        )
        assert until(lambda: self.ask() is not None, 90), (self.folder / "log").read_text()[-2000:]

    def start_node(self, name, nnodes, *script, standby=False):
        address = self.add(name)
        verb = ("agent", "--standby") if standby else ("run",)
        job = ("--job", "j", "--node", name, "--nnodes", str(nnodes), "--nproc-per-node", "1")
        where = ("--address", address, "--log-dir", str(self.folder / name))
        inside = ("ip", "netns", "exec", self.space(name), sys.executable, "-m", "pulsetrain.cli")
        env = self.env | {"GLOO_SOCKET_IFNAME": "data", "OMP_NUM_THREADS": "1"}
        env |= {"TP_SOCKET_IFNAME": "data"}
        self.nodes.append(
            subprocess.Popen(
                [*inside, *verb, *job, *where, *script],
                env=env,
                stdout=self.log,
                stderr=self.log,
                start_new_session=True,
            )
        )

    def lose_all(self, name):
        """The switch drops everything that goes to a node and comes from it."""
        outer, space = f"{self.space(name)}d", self.space(name)
        shell(f"tc qdisc add dev {outer} root bfifo limit 1")
        shell(f"tc -n {space} qdisc replace dev data root bfifo limit 1")

    def close(self):
        super().close()
        for pid in with_environment("SITE_MARK", self.mark):  # the stores of ranks wait for two minutes
            os.kill(pid, signal.SIGTERM)
        for name in self.names:
            for kind in "cd":  # a socket that still resends keeps a namespace for some time
                link = f"{self.space(name)}{kind}"
                subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True, check=False)
        for bridge in "cd":
            subprocess.run(["ip", "link", "del", f"{self.tag}{bridge}"], capture_output=True, check=False)
