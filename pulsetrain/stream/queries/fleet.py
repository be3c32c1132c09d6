"""SELECTs about the machines of all jobs together."""

from __future__ import annotations

import pyarrow as pa

from pulsetrain.stream.queries.queryable import Queryable


def machine_failures(store: Queryable) -> pa.Table:
    """One row: machines, machine_days, failures.

    `machines` have ever sent a heartbeat. `machine_days` is for how long they did, in whole hours. `failures`
    is how often one of them was lost, or evicted by the controller. Several events of a machine within an
    hour are one failure.
    """
    return store.query(
        """
        SELECT uniqExact(node) AS machines, uniqExact(node, toStartOfHour(ts)) / 24 AS machine_days,
               (SELECT uniqExact(node, toStartOfHour(ts)) FROM events
                WHERE node != '' AND (kind = 'node_lost' OR kind = 'evict' AND actor = 'controller')
               ) AS failures
        FROM heartbeats WHERE node != ''
        """
    )
