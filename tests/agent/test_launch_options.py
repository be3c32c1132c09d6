"""What was asked for, and what follows from it."""

import socket
from pathlib import Path

import pytest

from pulsetrain.agent.hub_notice import HubNotice
from pulsetrain.agent.launch_options import (
    LaunchOptions,
    NodeOptions,
    OutputOptions,
    address_towards,
    await_address,
)
from pulsetrain.agent.processes.rank import Program
from pulsetrain.diagnostics.transfers import own_address
from tests.recovery.fakes import FakeClock

PROGRAM = Program(argv=("/jobs/train_gpt.py", "--steps", "3"))


def test_a_job_has_the_scripts_name_and_a_node_the_hosts():
    options = LaunchOptions(program=PROGRAM)
    assert (options.job_name, options.node_name) == ("train_gpt", socket.gethostname())
    module = LaunchOptions(program=Program(argv=("proj.pretrain",), mode="module"))
    assert module.job_name == "proj.pretrain"
    named = LaunchOptions(program=PROGRAM, node=NodeOptions(job="j", node="n"))
    assert (named.job_name, named.node_name) == ("j", "n")


@pytest.mark.parametrize(
    ("output", "echoed"),
    [
        (OutputOptions(), [0, 1, 2]),
        (OutputOptions(local_ranks=frozenset({1})), [1]),
        (OutputOptions(quiet=True, local_ranks=frozenset({1})), []),
    ],
)
def test_whose_output_is_echoed(output, echoed):
    assert [rank for rank in range(3) if output.echoes(rank)] == echoed


def test_the_data_folder_is_the_flags_then_the_environments():
    environ = {"PULSETRAIN_DATA": "/from/environ"}
    assert LaunchOptions(program=PROGRAM, environ=environ).data_folder == Path("/from/environ")
    assert LaunchOptions(program=PROGRAM, environ=environ, data=Path("/d")).data_folder == Path("/d")


def test_a_node_is_reached_where_the_user_says_else_on_the_way_to_the_hub():
    options = LaunchOptions(program=PROGRAM, node=NodeOptions(nnodes=4, standby=True))
    identity = options.identity("127.0.0.1")
    assert (identity.address, identity.nnodes, identity.standby) == ("127.0.0.1", 4, True)
    named = LaunchOptions(program=PROGRAM, node=NodeOptions(address="10.1.1.1"))
    assert named.identity("127.0.0.1").address == "10.1.1.1"


def test_a_hub_whose_name_is_not_known_yet_is_waited_for():
    clock, said, slept = FakeClock(), [], []
    unknown = ["http://no-such-host.invalid:1", "http://neither.invalid:1"]
    assert address_towards(unknown[0]) == ""
    urls = list(unknown)

    def sleep(seconds):
        slept.append(seconds)
        clock.now_s += seconds
        if clock.now_s > 1009:
            urls[1] = "http://127.0.0.1:1"

    assert await_address(urls, HubNotice(said.append, clock), sleep) == "127.0.0.1"
    assert max(slept) <= 2.0
    assert [line.split(".")[0] for line in said] == [
        "hub http://no-such-host",
        "hub http://127",
    ]


@pytest.mark.skipif(not own_address("::1"), reason="no IPv6 here")
def test_an_address_towards_a_hub_with_ipv6_is_one():
    assert address_towards("http://[::1]:8780") == "::1"
