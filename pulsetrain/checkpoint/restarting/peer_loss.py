"""Tells an exception that a lost peer causes from one that is the rank's own."""

from __future__ import annotations

from collections.abc import Iterator

SIGNS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection was likely closed",
    "socket closed",
    "gloo/transport",
    "timed out waiting",
    "wait timeout",
    "nccl error",
    "ncclremoteerror",
    "process group has been aborted",
    "communicator was aborted",
    "failed to recv",
    "failed to send",
)
"""Parts of what gloo, NCCL and torch's stores say where another process went away, in small letters.

Seen with gloo and torch 2.15. Those of NCCL are from its sources and were not seen here.
"""


def is_peer_loss(error: BaseException) -> bool:
    """Return whether `error`, or what caused it, is what a collective raises when a peer is gone.

    >>> is_peer_loss(RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [::1]:4"))
    True
    >>> is_peer_loss(ValueError("loss is NaN")), is_peer_loss(SystemExit(1))
    (False, False)
    """
    return any(_is_of_transport(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_of_transport(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError | ConnectionError | TimeoutError):
        return False
    text = str(error).lower()
    return isinstance(error, ConnectionError) or any(sign in text for sign in SIGNS)
