"""Eight network namespaces as nodes, under two ToRs and on two rails, with links that tc makes bad.

Each node has a port on each rail. Each ToR has a bridge for each rail, and an uplink to the other ToR's
bridge. A second address of a port stands for memory that is further away from it. Every link is shaped to the
same rate, uplinks to four times that, in both directions. Needs root, ip and tc.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from anyjob.kept import Kept

from machinecheck import link_worker
from pulsetrain.diagnostics.link_search import LinkSearch, SearchVerdict
from pulsetrain.diagnostics.link_tests import Measured, Port, Transfer
from pulsetrain.diagnostics.transfers import TransferReport

NODES, RAILS, TORS = 8, 2, 2
RATE_MBIT = 20
SECONDS = 0.5
MEMORY = "1"
FLAP_S = 0.25

Answer = dict[str, object]


def shell(script: str) -> None:
    """Run commands, one for each line. Raises `CalledProcessError`."""
    for line in script.splitlines():
        if line.strip():
            subprocess.run(line.split(), check=True, capture_output=True)


def missing() -> str:
    """What the machine lacks for this, "" for nothing."""
    if os.geteuid():
        return "not root"
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacking:
        return f"no {lacking[0]}"
    made = subprocess.run(["ip", "netns", "add", "pt-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "pt-probe"], capture_output=True, check=False)
    return "network namespaces are not allowed" if made.returncode else ""


def bucket(rate_mbit: float) -> str:
    """A token bucket that holds a rate. What waits in it waits up to 200 ms."""
    return f"tbf rate {rate_mbit}mbit burst 16kb latency 200ms"


def shape(end: tuple[str, str], rate_mbit: float) -> None:
    """Give all packets that leave a device one rate."""
    space, device = end
    delete = ["tc", "-n", space, "qdisc", "del", "dev", device, "root"]
    subprocess.run(delete, capture_output=True, check=False)  # there may be none yet
    shell(f"tc -n {space} qdisc add dev {device} root handle 1: {bucket(rate_mbit)}")


def divide(end: tuple[str, str], rate_mbit: float, other_mbit: float, matches: Sequence[str]) -> None:
    """Give packets that leave a device a rate, and those that match another one. 0: those are dropped."""
    space, device = end
    add = f"tc -n {space} class add dev {device} parent 1: classid"
    shell(
        f"""tc -n {space} qdisc del dev {device} root
        tc -n {space} qdisc add dev {device} root handle 1: htb default 1
        {add} 1:1 htb rate {rate_mbit}mbit burst 16kb
        {add} 1:2 htb rate {other_mbit or 1}mbit burst 16kb"""
    )
    if not other_mbit:  # a queue for one byte takes no packet
        shell(f"tc -n {space} qdisc add dev {device} parent 1:2 bfifo limit 1")
    for match in matches:
        shell(f"tc -n {space} filter add dev {device} parent 1: protocol ip u32 match {match} flowid 1:2")


def drop_some(end: tuple[str, str], rate_mbit: float) -> None:
    """Drop 4.7 % of the packets that leave a device: by the last bits of IP's identification, which counts.

    An answer to a first packet has 0, and is let through. tc's netem would do this by chance, where the
    kernel has it.
    """
    divide(end, rate_mbit, 0, ("u16 0x7 0x1f at 4", "u16 0x13 0x3f at 4"))


def ports() -> list[Port]:
    """Two rails of eight nodes."""
    return [
        Port(node=f"n{i}", rail=f"r{rail}", switch=f"s{i // (NODES // TORS)}", memories=(MEMORY,))
        for rail in range(RAILS)
        for i in range(NODES)
    ]


def address(port: Port, memory: str = "") -> str:
    """The address of a port, or that of its other memory."""
    return f"10.{210 + (2 if memory else 0)}.{port.rail[1:]}.{int(port.node[1:]) + 1}"


class Network:
    """The namespaces and what shapes their links. `close` takes all of it away."""

    def __init__(self) -> None:
        self._tag = f"pt{os.getpid() % 100000}"
        self.fabric = f"{self._tag}f"
        self._workers: dict[str, Worker] = {}

    def space(self, node: str) -> str:
        """The namespace of a node."""
        return f"{self._tag}{node}"

    def open(self) -> None:
        """Make everything."""
        shell(f"ip netns add {self.fabric}")
        bridges = [f"s{t}r{r}" for t in range(TORS) for r in range(RAILS)]
        for bridge in bridges:
            shell(
                f"""ip -n {self.fabric} link add {bridge} type bridge
                ip -n {self.fabric} link set {bridge} up"""
            )
        for node in dict.fromkeys(port.node for port in ports()):
            shell(f"ip netns add {self.space(node)}\nip -n {self.space(node)} link set lo up")
        for port in ports():
            self._plug(port)
        for rail in range(RAILS):
            a, b = f"u0r{rail}", f"u1r{rail}"
            shell(
                f"""ip -n {self.fabric} link add {a} type veth peer name {b}
                ip -n {self.fabric} link set {a} master s0r{rail} up
                ip -n {self.fabric} link set {b} master s1r{rail} up"""
            )
        for port in ports():
            self.heal(port)
        for node in dict.fromkeys(port.node for port in ports()):
            own = [port for port in ports() if port.node == node]
            self._workers[node] = Worker(self.space(node), [(address(p), address(p, MEMORY)) for p in own])
        for worker in self._workers.values():
            worker.wait()

    def _plug(self, port: Port) -> None:
        space, outer, inner = self.space(port.node), f"{port.node}{port.rail}", f"e{port.rail}"
        shell(
            f"""ip -n {self.fabric} link add {outer} type veth peer name {inner} netns {space}
            ip -n {self.fabric} link set {outer} master {port.switch}{port.rail} up
            ip -n {space} addr add {address(port)}/24 dev {inner}
            ip -n {space} addr add {address(port, MEMORY)}/24 dev {inner}
            ip -n {space} link set {inner} gso_max_segs 1
            ip -n {space} link set {inner} up"""
        )

    def heal(self, port: Port) -> None:
        """A port's link and its switch's uplink as they should be."""
        for end in self.ends(port):
            shape(end, RATE_MBIT)
        shape(self.uplink(port.switch, port.rail), 4 * RATE_MBIT)

    def ends(self, port: Port) -> list[tuple[str, str]]:
        """Namespace and device of both ends of a port's link."""
        return [(self.space(port.node), f"e{port.rail}"), (self.fabric, f"{port.node}{port.rail}")]

    def uplink(self, switch: str, rail: str) -> tuple[str, str]:
        """Namespace and device of a switch's end of its uplink."""
        return self.fabric, f"u{switch[1:]}{rail}"

    def set_link(self, port: Port, state: str) -> None:
        """Take a port's link down or up, at the switch."""
        shell(f"ip -n {self.fabric} link set {port.node}{port.rail} {state}")

    def check(self) -> SearchVerdict:
        """The rounds of the hub's own check, over all ports."""
        search = LinkSearch(ports())
        while planned := search.next_round():
            search.take(self._round(planned))
        return search.verdict()

    def _round(self, transfers: Sequence[Transfer]) -> list[Measured]:
        by_node: dict[str, list[Transfer]] = {}
        for transfer in transfers:
            by_node.setdefault(transfer.sender.node, []).append(transfer)
        for node, own in by_node.items():
            self._workers[node].tell(
                {
                    "seconds": SECONDS,
                    "to": [
                        [
                            address(t.receiver, t.memory),
                            self._workers[t.receiver.node].sinks[address(t.receiver, t.memory)],
                            address(t.sender, t.memory),
                        ]
                        for t in own
                    ],
                }
            )
        measured = []
        for node, own in by_node.items():
            for transfer, row in zip(own, self._workers[node].answer(), strict=True):
                report = TransferReport(**row)
                measured.append(
                    Measured(
                        transfer=transfer,
                        bits_per_s=report.bits_per_s,
                        resent_share=report.resent_share,
                        error=report.error,
                    )
                )
        return measured

    def close(self) -> None:
        """Take everything away."""
        for worker in self._workers.values():
            worker.close()
        for space in (self.fabric, *(self.space(f"n{i}") for i in range(NODES))):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


class Worker:
    """A process in a node's namespace that sends and receives. It ends with its standard input."""

    def __init__(self, space: str, addresses: Sequence[tuple[str, str]]) -> None:
        command = ["ip", "netns", "exec", space, sys.executable, str(Path(link_worker.__file__))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sinks: dict[str, int] = {}
        self.tell([a for pair in addresses for a in pair])

    def wait(self) -> None:
        """Until it listens."""
        self.sinks = self.answer()

    def tell(self, request: object) -> None:
        """Ask, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> object:
        """What it says to the last request."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, request: object) -> object:
        """Ask and wait."""
        self.tell(request)
        return self.answer()

    def close(self) -> None:
        """End it."""
        with self._process:  # closes both pipes and waits
            pass


# -- cases ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def flapping(network: Network, port: Port) -> Iterator[None]:
    """The link goes down and comes back while the block runs."""
    stop = threading.Event()

    def flap() -> None:
        while not stop.wait(FLAP_S):
            network.set_link(port, "down")
            stop.wait(FLAP_S / 2)
            network.set_link(port, "up")

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        network.set_link(port, "up")


@contextlib.contextmanager
def half_rate(network: Network, port: Port) -> Iterator[None]:
    for end in network.ends(port):
        shape(end, RATE_MBIT / 2)
    yield
    network.heal(port)


@contextlib.contextmanager
def lossy(network: Network, port: Port) -> Iterator[None]:
    for end in network.ends(port):
        drop_some(end, RATE_MBIT)
    yield
    network.heal(port)


@contextlib.contextmanager
def far_memory(network: Network, port: Port) -> Iterator[None]:
    _, towards = network.ends(port)
    divide(towards, RATE_MBIT, RATE_MBIT / 2, (f"ip dst {address(port, MEMORY)}/32",))
    yield
    network.heal(port)


@contextlib.contextmanager
def bad_uplink(network: Network, port: Port) -> Iterator[None]:
    drop_some(network.uplink(port.switch, port.rail), 4 * RATE_MBIT)
    yield
    network.heal(port)


Fault = Callable[[Network, Port], contextlib.AbstractContextManager[None]]
CASES: Mapping[str, tuple[Fault, Callable[[Port], str]]] = {
    "half_rate": (half_rate, lambda p: p.name),
    "loss_5_percent": (lossy, lambda p: p.name),
    "flapping": (flapping, lambda p: p.name),
    "far_memory": (far_memory, lambda p: f"{p.name} to memory {MEMORY}"),
    "bad_uplink": (bad_uplink, lambda p: f"{p.switch}/{p.rail}"),
}


def run(cases: int, clean: int, *, seed: int = 0, resume: Path | None = None) -> Answer:
    """How often each fault is named, and nothing else, and how many clean checks named somebody.

    With `resume` the rows of finished checks are kept in that file, and are not measured again.
    """
    kept, draw = Kept(resume), random.Random(seed)
    planned = [("clean", f"clean-{number}", ports()[0]) for number in range(clean)]
    planned += [(name, f"{name}-{number}", draw.choice(ports())) for number in range(cases) for name in CASES]
    left = [plan for plan in planned if not kept.done(plan[1])]
    network = Network()
    try:
        if left:
            network.open()
            network.check()  # opens neighbour tables
        for name, unit, port in left:
            kept.add(unit, [_one(network, name, port)])
    finally:
        network.close()
    units = {unit for _, unit, _ in planned}
    return _summary([row for row in kept.rows if row["unit"] in units], cases)


def _one(network: Network, name: str, port: Port) -> Answer:
    """One check, with a fault or without."""
    fault, expected = CASES.get(name, (lambda *_: contextlib.nullcontext(), lambda _: ""))
    with fault(network, port):
        began = time.perf_counter()
        verdict = network.check()
    named = [culprit.name for culprit in verdict.culprits]
    return {
        "what": name,
        "wanted": expected(port),
        "named": named,
        "right": named == [expected(port)] if name in CASES else not named,
        "reason": verdict.reason,
        "rounds": verdict.rounds,
        "seconds": round(time.perf_counter() - began, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def _summary(rows: Sequence[Answer], cases: int) -> Answer:
    clean = [row for row in rows if row["what"] == "clean"]
    faulty = [row for row in rows if row["what"] != "clean"]
    seconds = [float(str(row["seconds"])) for row in rows]
    return {
        "nodes": NODES,
        "rails": RAILS,
        "switches": TORS,
        "rate_mbit": RATE_MBIT,
        "cases_each": cases,
        "cases": len(faulty),
        "named": sum(bool(row["right"]) for row in faulty),
        "named_by_kind": {
            name: sum(bool(row["right"]) for row in faulty if row["what"] == name) for name in CASES
        },
        "not_named": [row for row in faulty if not row["right"]],
        "clean": len(clean),
        "clean_checks_that_name_somebody": sum(not row["right"] for row in clean),
        "clean_checks_without_an_answer": sum(bool(row["reason"] and row["right"]) for row in clean),
        "alarms": [row for row in clean if not row["right"]][:10],
        "median_check_s": round(median(seconds), 2) if seconds else 0.0,
        "longest_check_s": round(max(seconds, default=0.0), 2),
    }
