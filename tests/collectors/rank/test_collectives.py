"""The tracker asks works for their completion and never waits for one."""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from pulsetrain.collectors.rank.collectives import Tracker, timeout_ns
from pulsetrain.collectors.rank.operations import Group, Operation


class Work:
    """A work of torch's that is complete when the test says so."""

    def __init__(self):
        self.complete, self.error = False, None

    def is_completed(self):
        if self.error:
            raise self.error
        return self.complete


class Side:
    def __init__(self, watched, *, host_only):
        self.watched = watched
        self.tracker = Tracker(watched.handle.state)
        self.group = Group(self.tracker, "dp", lambda: (0, 1), host_only=host_only)
        self.ids, self.name = itertools.count(1), watched.handle.state.ring.intern("all_reduce")
        self.group._open_cell()

    def enqueue(self, work, peer=-1):
        number = next(self.ids)
        operation = Operation(self.group, self.name, number, 8, peer)
        operation.work = work
        self.newest = self.group.in_flight[number] = operation
        self.tracker.pending[id(work)] = (operation, number)

    def numbers(self):
        return [int(row["seq"]) for row in self.watched.reader.drain()[0]]


@pytest.fixture(params=[True, False], ids=["gloo", "nccl"])
def side(watched, request):
    return Side(watched, host_only=request.param)


def test_a_poll_records_what_has_completed_and_keeps_the_rest(side):
    done, open_ = Work(), Work()
    done.complete = True
    side.enqueue(done)
    side.enqueue(open_)
    side.tracker.poll()
    assert side.numbers() == [1]
    assert [number for _, number in side.tracker.pending.values()] == [2]
    open_.complete = True
    side.tracker.poll()
    assert (side.numbers(), side.tracker.pending) == ([2], {})


def test_a_wait_of_the_script_is_shown_while_it_lasts_and_recorded_after_it(side):
    work, shown = Work(), []
    side.enqueue(work)

    def original(waited):
        shown.extend((p.name, p.waiting) for p in side.watched.reader.status().stack)
        waited.complete = True
        return "result"

    assert side.tracker.watched_wait(original)(work) == "result"
    assert shown == [("all_reduce", True)]
    assert side.numbers() == [1]
    assert side.watched.open() == []


def test_a_wait_that_raises_leaves_the_operation_as_evidence(side):
    work = Work()
    side.enqueue(work)

    def original(_):
        raise RuntimeError("connection reset")

    with pytest.raises(RuntimeError, match="connection reset"):
        side.tracker.watched_wait(original)(work)
    assert side.numbers() == []
    assert len(side.tracker.pending) == 1


def test_a_wait_for_a_work_that_is_not_ours_is_only_passed_on(side):
    assert side.tracker.watched_wait(lambda work, timeout: timeout)(Work(), 5) == 5


def test_a_failed_work_is_counted_and_not_raised(side):
    work = Work()
    work.error = RuntimeError("aborted")
    side.enqueue(work)
    side.tracker.poll()
    assert side.watched.errors == 1


def test_all_operations_of_a_coalesced_batch_end_with_its_work(side):
    work = Work()
    for number in (1, 2):
        operation = Operation(side.group, side.name, number, 8, -1)
        side.group.in_flight[number] = operation
        side.tracker.coalesced.append((operation, number))
    assert side.tracker.watched_end_of_batch(lambda: work)() is work
    assert side.tracker.coalesced == []
    work.complete = True
    side.tracker.poll()
    assert side.numbers() == [1, 2]


def test_a_send_that_nobody_holds_is_not_in_flight_for_ever(watched):
    side = Side(watched, host_only=True)
    side.enqueue(Work(), peer=1)
    side.tracker.poll()
    assert (side.numbers(), side.group.in_flight, side.tracker.pending) == ([], {}, {})


def process_group(*timeouts):
    backends = [SimpleNamespace(options=SimpleNamespace(_timeout=t)) for t in timeouts]
    return SimpleNamespace(_device_types=range(len(backends)), _get_backend=lambda device: backends[device])


def test_the_shortest_timeout_of_a_groups_backends_counts():
    assert timeout_ns(process_group(timedelta(minutes=30), timedelta(seconds=90))) == 90 * 10**9


def test_a_backend_that_names_no_timeout_has_none():
    assert timeout_ns(process_group()) == 0
    assert timeout_ns(process_group(None)) == 0
    assert timeout_ns(SimpleNamespace()) == 0


def test_a_work_that_tells_its_end_only_to_who_waits_ends_when_its_output_is_waited_for(watched):
    """Gloo's reduce-scatter under DTensor: it has no future and is never complete by itself."""
    side = Side(watched, host_only=True)
    outputs = torch.zeros(2), torch.zeros(2)
    for output in outputs:
        side.enqueue(Work())
        side.newest.output = output.data_ptr()
    assert side.tracker.watched_wait_for_any(lambda tensor: tensor)(outputs[1]) is outputs[1]
    assert side.numbers() == [2]
    side.tracker.watched_wait_for_any(lambda tensors: tensors)([outputs[0], torch.zeros(1)])
    assert side.numbers() == [1]
    assert watched.errors == 0
