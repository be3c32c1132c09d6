"""What stands in place of the peer of an operation, where no rank can stand there."""

from __future__ import annotations

NO_PEER = -1
"""The operation is no send or recv."""
ANY_SOURCE = -2
"""A recv that takes from anybody. A record holds `NO_PEER` there."""
