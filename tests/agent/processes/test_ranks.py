"""The environment of a rank."""

import dataclasses

import pytest

from pulsetrain.agent.processes.ranks import NodeIdentity, rank_environment
from pulsetrain.protocol.messages import Start, WorldNode

WORLD = tuple(
    WorldNode(node=f"n{r}", node_rank=r, address=f"127.0.0.{r + 1}", peer_port=0, nproc=2) for r in range(4)
)
START = Start(
    id=1, job="gpt", attempt=5, node_rank=3, world=WORLD, store_address="127.0.0.1", store_port=1234
)
IDENTITY = NodeIdentity(job="gpt", node="n3", address="127.0.0.4", nproc_per_node=2, max_restarts=9)


def test_a_rank_sees_what_torchrun_would_tell_it():
    env = rank_environment(START, IDENTITY, local_rank=1)
    expected = {
        "RANK": "7",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "3",
        "GROUP_WORLD_SIZE": "4",
        "ROLE_RANK": "7",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RUN_ID": "gpt",
        "TORCHELASTIC_RESTART_COUNT": "5",
        "TORCHELASTIC_MAX_RESTARTS": "9",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert expected.items() <= env.items()


@pytest.mark.parametrize("step", [-1, 41])
def test_a_rank_knows_the_step_to_restore(step):
    env = rank_environment(dataclasses.replace(START, restore_step=step), IDENTITY, 0)
    assert env["PULSETRAIN_RESTORE_STEP"] == str(step)
    assert (env["PULSETRAIN_JOB"], env["PULSETRAIN_NODE"], env["PULSETRAIN_ATTEMPT"]) == ("gpt", "n3", "5")
