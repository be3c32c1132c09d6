"""What the policy asks for about trouble of a machine."""

from __future__ import annotations

from enum import StrEnum


class Response(StrEnum):
    """From the mildest to the strictest."""

    INFORM = "inform"
    CORDON = "cordon"
    """A standby is not promoted."""
    EVICT_AT_STEP = "evict_at_step"
    """The node is replaced after a checkpoint that holds without it, where a standby is at hand."""
    EVICT_NOW = "evict_now"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return list(Response).index(self)

    @property
    def evicts(self) -> bool:
        """Whether it takes the node out of the job."""
        return self in (Response.EVICT_AT_STEP, Response.EVICT_NOW)


def strictest(responses: list[Response]) -> Response:
    """The strictest of some responses, `INFORM` for none.

    >>> strictest([Response.CORDON, Response.EVICT_NOW]).value
    'evict_now'
    """
    return max(responses, key=lambda response: response.rank, default=Response.INFORM)
