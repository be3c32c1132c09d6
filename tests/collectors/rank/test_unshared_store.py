"""Ranks that do not share the agent's store meet at a port that rank 0 picks."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsetrain.agent.processes import rendezvous
from pulsetrain.collectors.rank.unshared_store import SWITCH, leave_agents_store


@pytest.fixture
def agents_port():
    service = rendezvous.host(timeout_s=20.0)
    yield next(service)["port"]
    service.close()


def environment(rank, port, **more):
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {"RANK": str(rank), "PULSETRAIN_ADDRESS": f"10.0.0.{rank}", **meeting, **more}


def test_all_ranks_learn_of_the_machine_of_rank_0_and_of_a_port_that_is_free_there(agents_port):
    ranks = [environment(rank, agents_port, **{SWITCH: "1"}) for rank in (1, 2, 0)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(leave_agents_store, ranks))
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"10.0.0.0"}
    [port] = {int(rank["MASTER_PORT"]) for rank in ranks}
    assert port != agents_port
    assert {rank["TORCHELASTIC_USE_AGENT_STORE"] for rank in ranks} == {"False"}
    with socket.create_server(("", port)):
        pass


@pytest.mark.parametrize("switch", [{}, {SWITCH: "0"}, {SWITCH: "true"}])
def test_without_the_switch_the_agents_store_is_the_ranks(switch):
    """torch reads 1 and nothing else."""
    rank = environment(0, 1, **switch)
    leave_agents_store(rank)
    assert rank == environment(0, 1, **switch)
