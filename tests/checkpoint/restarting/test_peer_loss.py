"""What is a lost peer, and what is the rank's own fault."""

import pytest

from pulsetrain.checkpoint.restarting.peer_loss import is_peer_loss

GLOO = "[/torch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [::1]:1: Connection reset by peer"


@pytest.mark.parametrize(
    "error",
    [RuntimeError(GLOO), ConnectionResetError("[Errno 104]"), TimeoutError("Wait timeout of 1000 ms")],
)
def test_what_a_transport_says_is_a_lost_peer(error):
    assert is_peer_loss(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        ValueError(GLOO),
        KeyboardInterrupt(),
        SystemExit(1),
        OSError(28, "x"),
    ],
)
def test_everything_else_is_the_ranks_own(error):
    assert not is_peer_loss(error)


def test_a_cause_counts_however_deep_it_is():
    outer = KeyError("loss")
    outer.__cause__ = ValueError("step failed")
    outer.__cause__.__context__ = RuntimeError(GLOO)
    assert is_peer_loss(outer)


def test_a_circle_of_causes_ends():
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert not is_peer_loss(one)
