"""What is known of one launch."""

from pulsetrain.protocol.messages import FirstStep
from pulsetrain.recovery.attempt import Attempt
from tests.recovery.builders import rank_exit


def first_step(node):
    return FirstStep(node=node, ts_ns=0, attempt=0, step=0)


def test_only_ranks_that_ended_with_status_0_have_finished():
    attempt = Attempt(exits=[rank_exit(0, 0), rank_exit(1, 1), rank_exit(2, -9), rank_exit(3, 0)])
    assert attempt.finished_ranks() == {0, 3}


def test_all_nodes_have_stepped_only_after_the_launch_was_answered():
    attempt = Attempt(first_steps={name: first_step(name) for name in "ab"})
    assert not attempt.all_stepped("ab")
    attempt.launched = True
    assert attempt.all_stepped("ab")
    assert not attempt.all_stepped("abc")
