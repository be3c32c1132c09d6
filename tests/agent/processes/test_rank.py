"""What one rank is told about its world."""

import dataclasses

import pytest

from pulsetrain.agent.processes.rank import rank_environment
from tests.agent.processes.test_ranks import IDENTITY, START


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


def test_a_rank_of_a_new_run_counts_restarts_from_0():
    env = rank_environment(dataclasses.replace(START, first_attempt=5), IDENTITY, local_rank=1)
    assert (env["TORCHELASTIC_RESTART_COUNT"], env["PULSETRAIN_ATTEMPT"]) == ("0", "5")


def test_a_rank_of_a_world_that_was_told_in_part_knows_its_whole_size():
    env = rank_environment(dataclasses.replace(START, world_nodes=5000), IDENTITY, local_rank=1)
    assert (env["WORLD_SIZE"], env["ROLE_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("10000", "10000", "5000")


@pytest.mark.parametrize("step", [-1, 41])
def test_a_rank_knows_the_step_to_restore(step):
    env = rank_environment(dataclasses.replace(START, restore_step=step), IDENTITY, 0)
    assert env["PULSETRAIN_RESTORE_STEP"] == str(step)
    assert (env["PULSETRAIN_JOB"], env["PULSETRAIN_NODE"], env["PULSETRAIN_ATTEMPT"]) == ("gpt", "n3", "5")


def test_ranks_are_told_the_sizes_of_their_replicas_where_these_may_differ():
    identity = dataclasses.replace(IDENTITY, nproc_per_node=2, node_unit=2, node_unit_min=1)
    start = dataclasses.replace(START, world_nodes=3)
    assert rank_environment(start, identity, 0)["PULSETRAIN_REPLICA_DEGREES"] == "4,2"
    assert "PULSETRAIN_REPLICA_DEGREES" not in rank_environment(START, IDENTITY, 0)
