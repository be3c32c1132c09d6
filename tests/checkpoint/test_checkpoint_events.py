"""Rows wait until they are taken, each once, of one record or of all."""

from pulsetrain.checkpoint.checkpoint_events import CheckpointEvents, Origin


def rows(taken) -> dict[str, list[int]]:
    return {batch.record: batch.column("rank").to_list() for batch in taken}


def test_records_are_taken_apart_and_only_once():
    events = CheckpointEvents(Origin(job="j", node="n"))
    events.stage("copy", "memory", rank=1, step=5)
    events.event("replica_peer_away", {"peer": "b"}, rank=2)
    events.stage("copy", "memory", rank=3, step=6)
    assert rows(events.take("events")) == {"events": [2]}
    assert rows(events.take("events")) == {}
    events.event("replica_peer_back", {"peer": "b"}, rank=4)
    assert rows(events.take()) == {"checkpoints": [1, 3], "events": [4]}
    assert events.take() == []
