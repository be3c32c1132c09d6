"""What lldpctl says. The files are output of lldpd 1.0.16 between network namespaces, of two and one port."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.collectors.machine import lldp
from pulsetrain.collectors.machine.lldp import Neighbour
from pulsetrain.core.errors import Unavailable

HERE = Path(__file__).parent


def output(*entries):
    return json.dumps({"lldp": {"interface": list(entries)}})


def entry(interface, chassis, port=None):
    return {interface: {"via": "LLDP", "chassis": chassis, "port": port or {}}}


def test_each_port_has_the_name_of_its_switch():
    assert lldp.parse((HERE / "lldpctl_two_ports.json").read_text()) == [
        Neighbour(interface="eth0", switch="leaf-07", port="swp11"),
        Neighbour(interface="eth1", switch="leaf-08", port="swp12"),
    ]


def test_one_port_stands_alone_and_not_in_a_list():
    (only,) = lldp.parse((HERE / "lldpctl_one_port.json").read_text())
    assert only == Neighbour(interface="eth0", switch="leaf-07", port="swp11")


def test_a_switch_without_a_name_is_called_by_its_chassis():
    chassis = {"id": {"type": "mac", "value": "9a:7a:5f:e1:ae:b5"}, "descr": "a switch"}
    port = {"id": {"type": "ifname", "value": "Ethernet7"}, "descr": "to node 1"}
    (seen,) = lldp.parse(output(entry("eth0", chassis, port)))
    assert seen == Neighbour(interface="eth0", switch="9a:7a:5f:e1:ae:b5", port="Ethernet7")


def test_a_neighbour_that_can_neither_bridge_nor_route_is_no_switch():
    def chassis(name, kind, *, enabled):
        able = {"type": kind, "enabled": enabled}  # one capability stands alone
        return {name: {"id": {"type": "mac", "value": "00:00:00:00:00:01"}, "capability": able}}

    seen = lldp.parse(
        output(
            entry("eth0", chassis("firmware", "Station", enabled=True)),
            entry("eth0", chassis("leaf", "Bridge", enabled=True)),
            entry("eth1", chassis("off", "Bridge", enabled=False)),
            entry("eth2", {"silent": {"id": {"type": "local", "value": "x"}}}),
        )
    )
    assert [(n.interface, n.switch) for n in seen] == [("eth0", "leaf"), ("eth2", "silent")]


def test_names_are_one_line_of_printable_characters():
    (seen,) = lldp.parse(output(entry("eth0", {"le\naf\x1b[31m": {"id": {"value": "x"}}})))
    assert seen.switch == "le af [31m"


def test_nothing_heard_yet_is_no_switch():
    assert lldp.parse('{"lldp": {}}') == []


@pytest.mark.parametrize("text", ["", "no neighbours", "[]", '{"lldp": 3}'])
def test_other_output_is_refused_in_one_line(text):
    with pytest.raises(Unavailable, match="lldpctl: its output"):
        lldp.parse(text)


names = st.sampled_from(["id", "chassis", "port", "capability", "value", "eth0"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_whatever_stands_there_each_switch_has_a_name(value):
    assert all(n.switch and n.interface for n in lldp.parse(output({"eth0": value}, value)))


def test_a_node_is_under_the_switch_of_the_port_by_which_it_is_reached():
    heard = [Neighbour(interface="eth1", switch="b"), Neighbour(interface="eth0", switch="a")]
    assert lldp.switch_of(heard, ["bond0", "eth1"]) == "b"
    assert lldp.switch_of(heard, ["eth0", "eth1"]) == "a+b"
    assert lldp.switch_of(heard, ["-"]) == "a+b"


def test_the_ports_of_a_bond_are_below_it(tmp_path):
    for name in ("vlan7", "bond0", "eth0", "eth1"):
        (tmp_path / "class" / "net" / name).mkdir(parents=True)
    for upper, lower in (("vlan7", "bond0"), ("bond0", "eth0"), ("bond0", "eth1")):
        (tmp_path / "class" / "net" / upper / f"lower_{lower}").symlink_to(f"../{lower}")
    assert sorted(lldp.with_lower("vlan7", tmp_path)) == ["bond0", "eth0", "eth1", "vlan7"]
    assert lldp.with_lower("-", tmp_path) == ["-"]


def script(folder, text):
    path = folder / "lldpctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_tool_is_asked_for_json(tmp_path):
    port = output(entry("eth0", {"s3": {"id": {"value": "x"}}}))
    (tmp_path / "out").write_text(port)
    (seen,) = lldp.read(script(tmp_path, f'[ "$*" = "-f json" ] && cat {tmp_path}/out'))
    assert seen.switch == "s3"


def test_without_the_tool_nothing_is_heard(tmp_path):
    assert lldp.read(str(tmp_path / "none")) == []


def test_a_tool_that_fails_or_hangs_is_told_in_one_line(tmp_path):
    with pytest.raises(Unavailable, match="exit status 1: unable to connect to socket"):
        lldp.read(script(tmp_path, "echo unable to connect to socket >&2; exit 1"))
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer in 0\.1 s"):
        lldp.read(script(tmp_path, "exec sleep 30"), limit_s=0.1)
    assert time.monotonic() - began_s < 10
