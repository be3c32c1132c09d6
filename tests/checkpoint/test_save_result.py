"""What a script can learn of a save."""

import os

import pytest

from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.slots import next_history
from pulsetrain.checkpoint.save_result import SaveResult
from pulsetrain.core.errors import CheckpointError
from tests.checkpoint.trainers import save


@pytest.fixture
def arena():
    fd = create_arena()
    yield ArenaWriter(fd)
    os.close(fd)


def published(arena: ArenaWriter, step: int) -> SaveResult:
    result = SaveResult(step, arena=arena)
    result.mark_copied()
    result.mark_published(save(arena.fd, 0, step))
    return result


def test_the_status_follows_the_save(arena):
    result = SaveResult(4, arena=arena)
    assert (result.status, bool(result), result.finished) == ("copying", True, False)
    result.mark_copied()
    assert (result.status, result.copied) == ("copied", True)
    info = save(arena.fd, 0, 4)
    result.mark_published(info)
    assert (result.status, result.finished) == ("saved", True)
    assert result.wait(0) == info
    assert repr(result) == "SaveResult(step=4, status='saved')"


def test_a_skipped_save_is_false_and_has_its_reason():
    result = SaveResult(4, skipped="no room")
    assert not result
    assert result.status == "skipped: no room"
    with pytest.raises(CheckpointError, match="step 4 was skipped: no room"):
        result.wait()


def test_a_failed_save_is_false_and_has_its_error():
    result = SaveResult(4)
    result.mark_failed(RuntimeError("broken"))
    assert not result
    assert result.status == "failed: step 4: broken"
    with pytest.raises(CheckpointError, match="step 4: broken"):
        result.wait()
    result.wait_finished()  # the next save goes on


def test_a_save_that_takes_too_long_is_an_error():
    with pytest.raises(CheckpointError, match="step 4 is not saved after 0 s"):
        SaveResult(4).wait(0)


def test_training_is_held_only_until_the_copy_is_complete():
    result = SaveResult(4)
    result.mark_copied()
    result.wait_copied()
    assert result.waiting_since_ns == 0  # nothing was waited for


def test_replicated_and_durable_are_what_the_agent_announces(arena):
    result, agent = published(arena, 4), ArenaReader(arena.fd)
    with pytest.raises(CheckpointError, match="step 4 is not in a peer's memory after 0 s"):
        result.wait_replicated(0, 0)
    with pytest.raises(CheckpointError, match="step 4 is not in storage after 0 s"):
        result.wait_durable(0, 0)
    agent.replicated_step = 4
    assert result.wait_replicated(0)
    agent.set_durable(7)  # a later step will do
    result.wait_durable(0)


def test_what_was_stored_before_the_script_went_back_is_not_this_save(arena):
    agent, back = ArenaReader(arena.fd), next_history(0)
    agent.set_durable(10)
    result = SaveResult(9, arena=arena)
    result.mark_published(save(arena.fd, 0, 9, edition=back))
    with pytest.raises(CheckpointError, match="step 9 is not in storage"):
        result.wait_durable(0, 0)
    agent.set_durable(9, 0, back)
    result.wait_durable(0)
    agent.set_durable(11)  # is late, and older all the same
    assert agent.durable_step == 9


def test_what_an_earlier_attempt_stored_late_is_not_this_save(arena):
    agent, result = ArenaReader(arena.fd), SaveResult(9, arena=arena)
    result.mark_published(save(arena.fd, 0, 9, attempt=1))
    agent.set_durable(10, 0)
    with pytest.raises(CheckpointError, match="step 9 is not in storage"):
        result.wait_durable(0, 0)
    agent.set_durable(9, 1)
    result.wait_durable(0)
