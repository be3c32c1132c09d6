"""The tracker asks works for their completion and never waits for one."""

from __future__ import annotations

import itertools
import threading
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from pulsetrain.collectors.rank.collectives import MAX_HELD_BYTES, Tracker, timeout_ns
from pulsetrain.collectors.rank.operations import Group, Operation
from pulsetrain.collectors.rank.stream_end import StreamEnd


class Work:
    """A work of torch's that is complete when the test says so."""

    def __init__(self):
        self.complete, self.error = False, None

    def is_completed(self):
        if self.error:
            raise self.error
        return self.complete


class Call:
    """The arguments of torch's hooks for an all-reduce of a tensor on a CUDA device."""

    name = SimpleNamespace(value=3, name="ALLREDUCE")
    root = -1

    def __init__(self, op_id, work, size=8, address=1):
        self.op_id, self.work = op_id, work
        tensor = SimpleNamespace(nbytes=size, is_cuda=True, device=torch.device("cuda:3"))
        tensor.data_ptr = lambda: address
        self.input_tensors = self.output_tensors = [tensor]


class ProcessGroup:
    """A key of the tracker's groups."""


class Device:
    """A CUDA device without one: its current stream, and the events that were recorded there.

    Asked for an event inside a capture, CUDA fails and gives the capture up.
    """

    def __init__(self, monkeypatch):
        self.capturing, self.events, self.devices = False, [], []
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr("pulsetrain.collectors.rank.stream_end.record", self.record)

    def record(self, device):
        self.refuse_in_capture()
        self.devices.append(str(device))
        self.events.append(event := SimpleNamespace(passed=False, queries=0))

        def query():
            self.refuse_in_capture()
            event.queries += 1
            return event.passed

        event.query = query
        return StreamEnd(event, device)

    def refuse_in_capture(self):
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


class Side:
    def __init__(self, watched, *, host_only):
        self.watched = watched
        self.tracker = Tracker(watched.handle.state)
        self.group = Group(self.tracker, "dp", lambda: (0, 1), host_only=host_only)
        self.ids, self.name = itertools.count(1), watched.handle.state.ring.intern("all_reduce")
        self.group._open_cell()
        self.process_group = ProcessGroup()
        self.tracker._groups[self.process_group] = self.group
        self.tracker._has_device = not host_only

    def enqueue(self, work, peer=-1):
        number = next(self.ids)
        operation = Operation(self.group, self.name, number, 8, peer)
        operation.work = work
        self.newest = self.group.in_flight[number] = operation
        self.tracker.pending[id(work)] = (operation, number)

    def call(self, work, **tensor):
        """What torch's hooks do for one collective on a CUDA device."""
        self.group.before(call := Call(next(self.ids), work, **tensor))
        self.group.after(call)

    def in_batch(self, count, end, **tensor):
        """A coalesced batch of collectives without works of their own."""
        start = self.tracker.watched_start_of_batch(lambda process_group, device: None)
        start(self.process_group, torch.device("cuda:3"))
        for _ in range(count):
            self.call(None, **tensor)
        return self.tracker.watched_end_of_batch(end)(self.process_group, torch.device("cuda:3"))

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


def test_works_behind_one_that_has_not_ended_on_the_device_are_not_asked(watched, device):
    side, asked = Side(watched, host_only=False), []
    works = [Work() for _ in range(100)]
    for work in works:
        work.is_completed = lambda work=work: asked.append(work) or work.complete
        side.call(work)
    assert len(asked) < 2 * len(works)
    for work in works[:60]:
        work.complete = True
    asked.clear()
    side.tracker.poll()
    assert asked == works[:61]
    assert len(side.tracker.pending) == 40


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


def test_a_failed_work_is_counted_once_and_hides_no_work_behind_it(side):
    failed, done = Work(), Work()
    failed.error, done.complete = RuntimeError("aborted"), True
    side.enqueue(failed)
    side.enqueue(done)
    side.tracker.poll()
    side.tracker.poll()
    assert side.numbers() == [2]
    assert (side.tracker.pending, side.watched.errors) == ({}, 1)
    assert list(side.group.in_flight) == [1], "it stays in flight as evidence"


def test_all_operations_of_a_coalesced_batch_end_with_its_work(side):
    work = Work()
    side.in_batch(2, lambda process_group, device: work)
    assert (side.numbers(), side.group.batch) == ([], None)
    work.complete = True
    side.tracker.poll()
    assert side.numbers() == [1, 2]


def test_a_send_that_nobody_holds_is_not_in_flight_for_ever(watched):
    side = Side(watched, host_only=True)
    side.enqueue(Work(), peer=1)
    side.tracker.poll()
    assert (side.numbers(), side.group.in_flight, side.tracker.pending) == ([], {}, {})


def test_a_synchronous_operation_of_a_device_ends_when_its_stream_gets_there(watched, device):
    """torch keeps no work of it. Each new one must cost the same as the first."""
    side = Side(watched, host_only=False)
    for _ in range(3):
        side.call(None)
    side.tracker.poll()
    assert (side.numbers(), len(side.group.in_flight)) == ([], 3)
    queries = [event.queries for event in device.events]
    assert queries[1:] == [0, 0], "a stream that has not got to the first end has not got to the next"
    for event in device.events[:2]:
        event.passed = True
    side.tracker.poll()
    assert side.numbers() == [1, 2]
    assert len(side.tracker.pending) == len(side.group.in_flight) == 1
    assert (device.devices, watched.errors) == (["cuda:3"] * 3, 0)


def test_a_synchronous_operation_of_the_host_has_ended_and_blocked_when_torch_returns(watched):
    side = Side(watched, host_only=True)
    side.call(None)
    rows = watched.reader.drain()[0]
    assert [int(row["seq"]) for row in rows] == [1]
    assert rows[0]["blocked"] == rows[0]["end"] - rows[0]["start"] > 0
    assert (side.group.in_flight, side.tracker.pending) == ({}, {})


def test_a_synchronous_batch_ends_when_the_stream_gets_behind_it(watched, device):
    side = Side(watched, host_only=False)
    assert side.in_batch(3, lambda process_group, device: None) is None
    assert (side.numbers(), len(device.events)) == ([], 1)
    device.events[0].passed = True
    side.tracker.poll()
    assert (side.numbers(), side.group.in_flight, watched.errors) == ([1, 2, 3], {}, 0)


def test_a_group_that_cannot_coalesce_opens_no_batch(side):
    def refuses(process_group, device):
        raise RuntimeError("Backend gloo does not implement startCoalescing")

    with pytest.raises(RuntimeError, match="does not implement"):
        side.tracker.watched_start_of_batch(refuses)(side.process_group, torch.device("cpu"))
    assert side.group.batch is None


def test_a_work_inside_a_batch_is_not_asked_before_the_batch_ends(watched, device):
    """NCCL records no event for it, and an event that was never recorded says that it has passed."""
    side = Side(watched, host_only=False)
    inside, whole = Work(), Work()
    inside.complete = True
    start = side.tracker.watched_start_of_batch(lambda process_group: None)
    start(side.process_group)
    side.call(inside)
    side.tracker.poll()
    assert side.numbers() == []
    side.tracker.watched_end_of_batch(lambda process_group: whole)(side.process_group)
    whole.complete = True
    side.tracker.poll()
    assert side.numbers() == [1]


def test_no_event_is_asked_or_recorded_inside_the_capture_of_a_graph(watched, device):
    side = Side(watched, host_only=False)
    before, captured = Work(), Work()
    side.enqueue(before)
    side.call(None)
    device.capturing = True
    for work in (before, captured):  # whatever is asked of them fails
        work.error = RuntimeError("operation not permitted when stream is capturing")
    side.call(captured)
    side.call(None)
    side.in_batch(2, lambda process_group, device: None)
    side.tracker.watched_wait(lambda work: None)(before)
    side.tracker.poll()
    device.capturing, before.error, before.complete = False, None, True
    device.events[0].passed = True
    side.tracker.poll()
    assert side.numbers() == [1, 1], "what was captured has not run"
    assert (side.group.in_flight, side.tracker.pending, watched.errors) == ({}, {}, 0)


@pytest.fixture
def refused(watched):
    """A rank whose second collective was refused by torch."""
    side = Side(watched, host_only=True)
    side.tracker._attached.append((lambda: None, side.group))
    side.call(None)
    side.group.before(Call(next(side.ids), None))
    assert watched.reader.status().groups[0].op == "all_reduce"
    return side


def test_a_collective_that_torch_refused_is_not_in_flight_once_a_step_has_ended(refused):
    refused.watched.handle.step()
    cell = refused.watched.reader.status().groups[0]
    assert (cell.op, cell.enqueued, cell.completed) == ("", 1, 1)
    refused.call(None)
    assert refused.numbers() == [1, 2], "torch enqueued nothing, so the next one has its number"
    assert refused.watched.errors == 0


def test_one_whose_error_torch_reports_is_evidence_until_the_script_goes_on(refused):
    report = refused.tracker.watched_report(lambda name: {"func_name": name})
    assert report("all_reduce") == {"func_name": "all_reduce"}
    assert refused.watched.reader.status().groups[0].op == "all_reduce"
    with refused.watched.handle.phase("evaluation"):
        pass
    assert refused.watched.reader.status().groups[0].op == ""


def test_a_step_on_another_thread_drops_nothing(refused):
    thread = threading.Thread(target=refused.tracker.settle)
    thread.start()
    thread.join()
    assert refused.watched.reader.status().groups[0].op == "all_reduce"


LARGE = MAX_HELD_BYTES // 2 + 1


def test_the_outputs_of_works_that_were_waited_for_are_not_held_without_bound(watched, device):
    """A work of NCCL holds its outputs. Their memory must be free as soon as the script drops them."""
    side, kept = Side(watched, host_only=False), []
    wait = side.tracker.watched_wait(lambda work: None)
    for _ in range(10):
        work = Work()
        side.call(work, size=LARGE)
        wait(work)
        kept.append(weakref.ref(work))
        del work
    assert sum(work() is not None for work in kept) == 1
    assert (side.numbers(), len(side.tracker.pending)) == ([], 10)
    for event in device.events:
        event.passed = True
    kept[0]().complete = True
    side.tracker.poll()
    assert sorted(side.numbers()) == list(range(1, 11))
    assert (side.group.in_flight, watched.errors) == ({}, 0)


def test_a_transfer_that_was_waited_for_is_let_go_too(watched, device):
    side, work = Side(watched, host_only=False), Work()
    call = Call(1, work, size=2 * LARGE)
    call.name, call.root = SimpleNamespace(value=0, name="SEND"), 1
    side.group.before(call)
    side.group.after(call)
    side.tracker.watched_wait(lambda work: None)(work)
    assert [operation.work is work for operation, _ in side.tracker.pending.values()] == [False]
    device.events[0].passed = True
    side.tracker.poll()
    assert (side.tracker.pending, watched.errors) == ({}, 0)


def test_a_work_that_is_let_go_leaves_all_of_its_batch(watched, device):
    side, work = Side(watched, host_only=False), Work()
    side.in_batch(2, lambda process_group, device: work, size=LARGE)
    side.tracker.watched_wait(lambda work: None)(work)
    assert len(device.events) == 1
    device.events[0].passed = True
    side.tracker.poll()
    assert (side.numbers(), side.tracker.pending) == ([1, 2], {})


def test_a_functional_collective_that_was_waited_for_is_let_go_by_its_tensor(watched, device):
    side, tensor = Side(watched, host_only=False), torch.zeros(2)
    first, second = Work(), Work()
    side.call(first, size=LARGE, address=tensor.data_ptr())
    side.call(second, size=LARGE, address=tensor.data_ptr() + 64)
    assert side.tracker.watched_wait_for_any(lambda tensor: tensor)(tensor) is tensor
    works = [operation.work for operation, _ in side.tracker.pending.values()]
    assert second in works
    assert first not in works
    assert len(works) == 2


def test_a_work_that_nobody_has_waited_for_is_kept(watched, device):
    """Only a stream that waits for it says anything of its end."""
    side, works = Side(watched, host_only=False), [Work() for _ in range(4)]
    for work in works:
        side.call(work, size=LARGE)
    side.tracker.poll()
    assert [operation.work for operation, _ in side.tracker.pending.values()] == works
    assert device.events == []


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


def test_a_wait_for_a_future_is_shown_in_no_collective_that_has_ended(watched):
    """RPC's futures are waited for like those of works, and belong to none of them."""
    side, shown = Side(watched, host_only=True), []
    ended, running = Work(), Work()
    wait = side.tracker.watched_wait_for_any(lambda future: shown.append(side.tracker._blocking.began > 0))
    side.enqueue(ended)
    ended.complete = True
    wait(torch.futures.Future())
    assert shown == [False]
    assert side.numbers() == [1]
    side.enqueue(running)
    wait(torch.futures.Future())
    assert shown == [False, True]


class TwoBackends:
    """A process group of `cpu:gloo,cuda:nccl` without a process behind it."""

    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def size(self):
        return 2

    def _get_backend(self, device):
        name = {"cpu": "gloo", "cuda": "nccl"}[device.type]
        return SimpleNamespace(name=lambda: name, options=None)

    def register_pre_hook(self, _, hook):
        self.before = hook

    def register_post_hook(self, _, hook):
        self.after = hook


def on_host(call):
    tensor = call.input_tensors[0]
    tensor.is_cuda, tensor.device = False, torch.device("cpu")
    return call


def test_operations_on_the_host_have_other_numbers_than_those_on_devices(watched, device):
    tracker, group = Tracker(watched.handle.state), TwoBackends()
    tracker.attach(group, "world", lambda: (0, 1))
    for number, place in enumerate(("cuda", "cpu", "cuda", "cpu")):
        call = Call(number, Work())
        group.before(call := on_host(call) if place == "cpu" else call)
        group.after(call)
    told = {(cell.name, cell.enqueued, cell.on_device) for cell in watched.reader.status().groups}
    assert told == {("world", 2, True), ("world/cpu", 2, False)}


def test_what_is_waited_for_on_the_host_has_ended_in_a_group_of_two_backends(watched, device):
    tracker, group = Tracker(watched.handle.state), TwoBackends()
    tracker.attach(group, "world", lambda: (0, 1))
    wait = tracker.watched_wait(lambda work: True)
    for number in range(100):
        call = on_host(Call(number, Work()))
        call.name = SimpleNamespace(value=7, name="REDUCE_SCATTER_BASE")
        group.before(call)
        group.after(call)
        wait(call.work)
    assert not tracker.pending
    assert watched.errors == 0
