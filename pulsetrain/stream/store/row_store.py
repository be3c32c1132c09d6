"""What rows are written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pulsetrain.stream.queries.queryable import Queryable


class RowStore(Queryable, Protocol):
    """What rows are written to."""

    def insert_raw(
        self,
        table: str,
        columns: Sequence[str],
        stream: bytes,
        *,
        token: str | None,
        despite_views: bool = False,
    ) -> None:
        """Store an uncompressed Arrow IPC stream, with `despite_views` also where a view of it fails.

        Raises `SchemaMismatch`, `Refused` or `Unavailable`.
        """
        ...
