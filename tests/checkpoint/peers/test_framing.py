"""Frames arrive as they were sent, and both sides prove the token without sending it."""

import socket
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.checkpoint.memory.blocks import digests
from pulsetrain.checkpoint.peers import framing
from pulsetrain.core.errors import AuthError, CorruptData, Unavailable


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.settimeout(20)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_frame_and_its_bodies_arrive(pair):
    ours, theirs = pair
    framing.send_frame(ours, {"op": "put", "rank": 3}, b"abc", memoryview(b"def"))
    assert framing.receive_frame(theirs) == {"op": "put", "rank": 3}
    assert framing.receive_bytes(theirs, 6) == b"abcdef"


def test_bytes_are_received_with_their_digests(pair):
    ours, theirs = pair
    framing.send_bytes(ours, memoryview(b"x" * 10 + b"y" * 20))
    target = memoryview(bytearray(40))
    spans = [(5, 10), (15, 20)]
    found = framing.receive_blocks(theirs, target, spans)
    assert bytes(target) == b"\0" * 5 + b"x" * 10 + b"y" * 20 + b"\0" * 5
    assert found == digests(target, spans)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\0\0\0\2{]", b"\0\0\0\2[]"])
def test_damaged_frames_are_refused(pair, raw):
    ours, theirs = pair
    ours.sendall(raw)
    with pytest.raises(CorruptData, match="frame header"):
        framing.receive_frame(theirs)


@pytest.mark.parametrize(
    "receive", [framing.receive_frame, lambda sock: framing.receive_into(sock, memoryview(bytearray(9)))]
)
def test_a_stream_that_ends_early_is_unavailable(pair, receive):
    ours, theirs = pair
    ours.sendall(b"\0\0")
    ours.close()
    with pytest.raises(Unavailable):
        receive(theirs)


def test_sending_to_a_closed_connection_is_unavailable(pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises(Unavailable, match="while sending"):
        framing.send_frame(ours, {"op": "x"}, bytes(1 << 20))


def meet(pair, *, client: tuple[str, str], server: tuple[str, str], offers: int = 0) -> list:
    """What each side's half of the handshake returns or raises, client first."""
    ours, theirs = pair
    answers: list = [None, None]

    def serve() -> None:
        try:
            answers[1] = framing.challenge(theirs, *server, offers=offers)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            answers[1] = error

    thread = Thread(target=serve)
    thread.start()
    try:
        answers[0] = framing.introduce(ours, *client, "node-7")
    except Exception as error:  # noqa: BLE001 - the test looks at it
        answers[0] = error
    thread.join(20)
    return answers


def test_who_has_the_token_is_let_in_and_learns_which_offers_are_taken(pair):
    assert meet(pair, client=("t", "j"), server=("t", "j"), offers=3) == [3, "node-7"]


@pytest.mark.parametrize("client", [("wrong", "j"), ("t", "other"), ("", "j")])
def test_another_token_or_job_is_refused_on_both_sides(pair, client):
    refused, refusing = meet(pair, client=client, server=("t", "j"))
    assert isinstance(refused, AuthError)
    assert isinstance(refusing, AuthError)
    assert "node-7" in str(refusing)


def test_another_version_is_refused(pair):
    ours, theirs = pair
    framing.send_frame(theirs, {"version": 99, "nonce": "n"})
    with pytest.raises(CorruptData, match="peer speaks version 99"):
        framing.introduce(ours, "t", "j", "n")


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 10))))
def test_spans_inside_a_checkpoint_are_taken(spans):
    assert framing.parse_spans([list(span) for span in spans], 100) == spans


@pytest.mark.parametrize("raw", [None, 3, {}, [3], [[1]], [["a", 1]], [[0, 0]], [[-1, 2]], [[99, 2]]])
def test_spans_outside_or_that_are_none_are_refused(raw):
    with pytest.raises(CorruptData):
        framing.parse_spans(raw, 100)
