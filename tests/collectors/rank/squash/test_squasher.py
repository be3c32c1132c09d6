"""Replicas that share a device, on threads: one computes, and no update has another result than alone."""

import gc
import json
import os
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsetrain.collectors import squash_layout as layout
from pulsetrain.collectors.rank.lost_update import UpdateLostError
from pulsetrain.collectors.rank.squash import contents, squasher
from pulsetrain.collectors.rank.squash.cell import Page
from pulsetrain.collectors.rank.squash.squasher import Squasher
from pulsetrain.collectors.reading.squash_words import SquashMemory
from tests.collectors.rank.watched import Watched

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


class Job:
    """Replicas that train in step. `before(rank, step, optimizer)` runs before each update."""

    def __init__(
        self, ranks=3, steps=12, *, every=5, optimizer="adamw", before=None, wait_s=20.0, groups=None, large=0
    ):
        self.ranks, self.steps, self.before, self.wait_s = ranks, steps, before, wait_s
        self.make = OPTIMIZERS[optimizer]
        self.memory = SquashMemory(every=every, weighs=False)
        self.shapes = ((40, 30), (5,), (large,)) if large else ((40, 30), (5,))
        self.groups = groups if groups is not None else {0: [range(ranks)]}
        self.turn = threading.Barrier(ranks, action=self.regroup)
        self.step = 0
        self.computed = [0] * ranks
        self.errors = [0] * ranks
        self.results = [[] for _ in range(ranks)]
        self.failures = []
        self.optimizers, self.squashers = {}, {}

    def regroup(self):
        if self.step in self.groups:
            self.memory.group(self.groups[self.step])
        self.step += 1

    def run(self):
        threads = [threading.Thread(target=self.train, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "nobody waits for ever"
        assert not self.failures
        self.said = [json.loads(t) for t in map(self.memory.stopped, range(self.ranks)) if t]
        self.used = [self.memory.use(rank) for rank in range(self.ranks)]
        self.memory.close()
        return self

    def train(self, rank):
        try:
            self._train(rank)
        except Exception as error:
            self.failures.append(error)
            self.turn.abort()
            raise

    def _train(self, rank):
        watched = Watched(slots=64)
        source = torch.Generator().manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(shape, generator=source)) for shape in self.shapes]
        optimizer = self.optimizers[rank] = self.make(parameters)
        squash = Squasher(watched.handle.state, Page(self.memory.fd, rank), rank, wait_s=self.wait_s)
        self.squashers[rank] = squash

        def compute():
            self.computed[rank] += 1
            optimizer.step()

        for step in range(self.steps):
            self.turn.wait(30)
            watched.handle.state.enter_step(step)
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=source)
            if self.before is not None:
                self.before(rank, step, optimizer)
            squash.step(optimizer, compute, plain=True)
            now = contents.read(optimizer)
            self.results[rank].append(contents.digests(now.everything(), now.numbers))
        self.errors[rank] = watched.errors


def alone(**how):
    """What the same replicas have where none of them squashes."""
    return Job(groups={}, **how).run().results


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_update_has_the_result_that_it_has_alone_and_one_rank_computes(optimizer):
    job = Job(optimizer=optimizer).run()
    assert job.results == alone(optimizer=optimizer)
    assert job.said == []
    assert job.errors == [0, 0, 0]
    assert job.computed[0] == 12
    assert all(3 <= computed <= 6 for computed in job.computed[1:]), "the first ones, and updates 5 and 10"
    assert [use.taken_over for use in job.used] == [12 - c for c in job.computed]


class InTurns(Job):
    """Replicas that train one parameter after another, each with an optimizer that is dropped then."""

    def _train(self, rank):
        watched = Watched(slots=64)
        source = torch.Generator().manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(40, 30, generator=source)) for _ in range(3)]
        squash = Squasher(watched.handle.state, Page(self.memory.fd, rank), rank, wait_s=self.wait_s)
        for parameter in parameters:
            optimizer = self.make([parameter])
            for _ in range(self.steps):
                self.turn.wait(30)
                parameter.grad = torch.randn(parameter.shape, generator=source)
                squash.step(optimizer, optimizer.step, plain=True)
                self.results[rank].append([contents.digest(each) for each in parameters])
            del optimizer
            gc.collect()
        self.errors[rank] = watched.errors


def test_what_a_dropped_optimizer_has_trained_stays_as_it_is():
    job = InTurns(steps=8).run()
    assert job.results == InTurns(steps=8, groups={}).run().results
    assert all(use.taken_over for use in job.used[1:])
    assert job.errors == [0, 0, 0]


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_groups_may_change_at_any_time(data):
    ranks = 4
    steps = data.draw(st.lists(st.integers(0, 11), max_size=4, unique=True), label="changes at")
    groups = {}
    for step in steps:
        device = data.draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks), label="devices")
        groups[step] = [[r for r in range(ranks) if device[r] == d] for d in range(3)]
    every = data.draw(st.sampled_from([1, 2, 3, 5, 6, 100]), label="every")
    job = Job(ranks, every=every, groups=groups).run()
    assert job.results == alone(ranks=ranks)
    assert job.said == []


def changes(rank, step, what):
    def before(who, when, optimizer):
        if (who, when) == (rank, step):
            parameter = optimizer.param_groups[0]["params"][1]
            tensor = parameter.grad if what == "gradient" else parameter
            tensor = optimizer.state[parameter]["exp_avg"] if what == "state" else tensor
            with torch.no_grad():
                tensor[3] += 1

    return before


@pytest.mark.parametrize(
    ("what", "step"), [("parameter", 7), ("parameter", 9), ("gradient", 6), ("state", 9)]
)
def test_a_replica_that_differs_is_named_and_everyone_goes_on_with_its_own(what, step):
    before = changes(2, step, what)
    job = Job(before=before).run()
    assert job.results == alone(before=before)
    (said,) = job.said
    assert (said["rank"], said["root"], said["step"]) == (2, 0, step)
    assert "parameter 1" in said["tensor"]
    assert job.computed[1] >= 2 + (12 - step - 1), "nobody takes over after that"


LARGE = contents.LARGE_BYTES  # numbers of four bytes each


@pytest.mark.parametrize("who", [0, 2])
def test_one_number_that_one_rank_writes_into_a_large_parameter_changes_no_result(who):
    def before(rank, step, optimizer):
        if (rank, step) == (who, 7):
            with torch.no_grad():
                optimizer.param_groups[0]["params"][2][LARGE - 9000] += 1

    job = Job(before=before, large=LARGE).run()
    assert job.results == alone(before=before, large=LARGE)
    assert job.said
    assert all("parameter 2" in said["tensor"] for said in job.said)


def test_weights_that_all_ranks_write_are_squashed_still():
    def before(rank, step, optimizer):
        with torch.no_grad():
            optimizer.param_groups[0]["params"][2].clamp_(-0.5, 0.5)

    job = Job(before=before, large=LARGE).run()
    assert job.results == alone(before=before, large=LARGE)
    assert job.said == []
    assert all(use.taken_over >= 6 for use in job.used[1:])


def test_every_number_of_a_large_gradient_is_seen_within_some_updates():
    large = torch.zeros(LARGE + 5)
    entries = [contents.Entry("gradient", large, 0)]
    turns = range(contents.ONE_IN)
    for at in (0, 1024, 5000, LARGE - 1, LARGE + 4):
        was = [contents.guards(entries, b"", turn) for turn in turns]
        large[at] += 1
        assert any(contents.guards(entries, b"", turn) != was[turn] for turn in turns)


def test_a_root_that_is_late_is_waited_for_only_so_long(monkeypatch):
    def before(rank, step, optimizer):
        if (rank, step) == (0, 6):
            time.sleep(0.5)

    job = Job(before=before, wait_s=0.05).run()
    assert job.results == alone()
    assert job.said == []
    assert all(use.alone >= 1 for use in job.used[1:])
    assert all(use.taken_over >= 2 for use in job.used[1:]), "they squash again"


def test_who_waits_for_a_root_that_is_gone_computes(monkeypatch):
    def before(rank, step, optimizer):
        if (rank, step) == (0, 6):
            monkeypatch.setattr(squasher.Cell, "root_lives", property(lambda cell: False))
            time.sleep(0.5)

    began = time.monotonic()
    job = Job(before=before, wait_s=50.0).run()
    assert time.monotonic() - began < 20
    assert job.results == alone()


def test_a_root_whose_update_fails_says_so_and_its_error_passes():
    memory = SquashMemory(every=5)
    memory.group([[0, 1]])
    squash = Squasher(Watched(slots=64).handle.state, Page(memory.fd, 0), 0)
    optimizer = OPTIMIZERS["adamw"]([torch.nn.Parameter(torch.ones(3))])

    def fails():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        squash.step(optimizer, fails, plain=True)
    words = Page(memory.fd, 1).cell(0, 0).words
    assert (words[layout.C_ANNOUNCED], words[layout.C_MODE]) == (1, layout.COMPUTES)
    memory.close()


def test_a_state_that_grows_while_ranks_squash_changes_no_result():
    def before(rank, step, optimizer):
        if step < 6:
            optimizer.param_groups[0]["params"][0].grad = None

    job = Job(before=before).run()
    assert job.results == alone(before=before)
    assert job.said == []
    assert all(use.taken_over >= 2 for use in job.used[1:])


def test_an_optimizer_that_is_refused_is_said_and_computed_by_all():
    class Own(torch.optim.SGD):
        pass

    OPTIMIZERS["own"] = lambda p: Own(p, lr=0.1)
    try:
        job = Job(optimizer="own").run()
        assert job.computed == [12] * 3
        assert len(job.said) == 3
        assert all("Own" in said["why"] for said in job.said)
    finally:
        del OPTIMIZERS["own"]


def test_a_root_whose_sharer_takes_no_part_gives_up():
    job = Job(groups={0: [[0, 1, 2, 9]]}).run()
    assert job.results == alone()
    assert job.said[0]["why"] == "a rank that shares the device does not take part"
    assert job.computed == [12] * 3


LONG = {"every": 100, "steps": 16}
"""So long until the next comparison that the root computes in the pages of all."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_in_the_pages_of_all_has_the_result_that_it_has_alone(optimizer):
    job = Job(optimizer=optimizer, **LONG, large=LARGE).run()
    assert job.results == alone(optimizer=optimizer, **LONG, large=LARGE)
    assert job.said == []
    assert job.errors == [0, 0, 0]
    assert [use.in_place >= 10 for use in job.used] == [False, True, True]


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("what", ["parameter", "hidden", "state", "gradient"])
def test_what_one_rank_writes_stays_its_own_where_pages_are_shared(who, what):
    def before(rank, step, optimizer):
        parameter = optimizer.param_groups[0]["params"][2]
        if (rank, step) == (who, 9):
            tensor = {"gradient": parameter.grad, "hidden": parameter.data}.get(what, parameter)
            tensor = optimizer.state[parameter]["exp_avg"] if what == "state" else tensor
            with torch.no_grad():
                tensor[: 9000 if what == "gradient" else 1] += 1  # of a large gradient a part is read
        if step == 9:
            seen[rank] = contents.digest(parameter), contents.digest(parameter.grad)

    seen = {}
    job = Job(before=before, large=LARGE, **LONG).run()
    others = [rank for rank in range(3) if rank != who]
    assert seen[others[0]] == seen[others[1]]
    assert (seen[who] == seen[others[0]]) is (what == "state")
    if (who, what) == (0, "state"):  # the root's state replaces theirs, as ever between two comparisons
        assert job.results[0] == job.results[1] == job.results[2]
    else:
        assert job.results == alone(before=before, large=LARGE, **LONG)
        assert "parameter 2" in job.said[0]["tensor"]
    assert all(use.in_place for use in job.used[1:]), "until then"


def test_after_weights_that_all_write_pages_are_shared_again():
    def before(rank, step, optimizer):
        if step == 8:
            optimizer.param_groups[0]["params"][2].data.clamp_(-0.5, 0.5)

    job = Job(before=before, large=LARGE, **LONG).run()
    assert job.results == alone(before=before, large=LARGE, **LONG)
    assert job.said == []
    assert all(use.in_place >= 8 for use in job.used[1:])


def test_nobody_sees_new_parameters_before_its_own_update():
    seen = {}

    def before(rank, step, optimizer):
        if rank == 2 and step >= 6:
            time.sleep(0.02)  # the others wait in their updates
        seen[rank, step] = [contents.digest(p) for p in optimizer.param_groups[0]["params"]]

    job = Job(before=before, **LONG).run()
    assert all(use.in_place for use in job.used[1:])
    for step in range(LONG["steps"]):
        assert seen[0, step] == seen[1, step] == seen[2, step]


def test_momentum_that_begins_late_makes_its_state_in_every_rank():
    def before(rank, step, optimizer):
        if step == 0:
            optimizer.param_groups[0]["momentum"] = 0.0
        if step == 8:
            optimizer.param_groups[0]["momentum"] = 0.9

    job = Job(before=before, optimizer="sgd", **LONG).run()
    assert job.results == alone(before=before, optimizer="sgd", **LONG)
    assert job.said == []
    assert all(use.in_place for use in job.used[1:])


class Breaks(Job):
    """The root's update fails in its ninth step, after it has written one parameter."""

    def __init__(self, **how):
        super().__init__(ranks=2, **how, **LONG)
        self.lost = []

    def train(self, rank):
        try:
            super()._train(rank)
        except (UpdateLostError, ArithmeticError) as error:
            self.lost.append(type(error))


@pytest.mark.parametrize("gone", [False, True])
def test_half_an_update_is_taken_by_nobody(gone, monkeypatch):
    def fails(optimizer):
        if gone:
            monkeypatch.setattr(squasher.Cell, "root_lives", property(lambda cell: False))
            monkeypatch.setattr(Squasher, "_fail", lambda *_: None)
        raise OverflowError

    def before(rank, step, optimizer):
        if (rank, step) == (0, 9):
            optimizer.step = lambda: fails(optimizer)

    job = Breaks(before=before).run()
    assert job.used[1].in_place
    assert set(job.lost) == {OverflowError, UpdateLostError}
    assert len(job.results[1]) == 9


def test_after_half_an_update_there_is_no_other_until_the_script_has_loaded_its_parameters_anew():
    seen = []

    class GoesOn(Breaks):
        def train(self, rank):
            super().train(rank)
            if rank == 1:
                squash, optimizer = self.squashers[rank], self.optimizers[rank]
                with pytest.raises(UpdateLostError, match="half done"):
                    squash.step(optimizer, optimizer.step, plain=False)
                seen.append(squash._state.update_lost())
                with torch.no_grad():
                    for parameter in optimizer.param_groups[0]["params"]:
                        parameter.zero_()  # as load_state_dict writes it
                squash.step(optimizer, optimizer.step, plain=False)
                seen.append(squash._state.update_lost())

    def before(rank, step, optimizer):
        if (rank, step) == (0, 9):
            optimizer.step = lambda: 1 / 0

    job = GoesOn(before=before).run()
    assert UpdateLostError in job.lost
    assert seen == [True, False]


def test_what_a_signal_handler_raises_comes_behind_an_update_that_was_agreed_to(monkeypatch):
    raised = []

    def before(rank, step, optimizer):
        if (rank, step) == (0, 9):
            original = optimizer.step

            def step_late():
                monkeypatch.setattr(squasher.Bell, "wait", interrupt)
                end = time.monotonic() + 20
                while not raised and time.monotonic() < end:
                    pass
                original()

            optimizer.step = step_late

    real = squasher.Bell.wait

    def interrupt(bell, seen, timeout_s):
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt
        real(bell, seen, timeout_s)

    class Interrupted(Job):
        def train(self, rank):
            try:
                super()._train(rank)
            except KeyboardInterrupt:
                now = contents.read(self.optimizers[rank])
                self.results[rank].append(contents.digests(now.everything(), now.numbers))
            except threading.BrokenBarrierError:
                return
            self.turn.abort()

    job = Interrupted(ranks=2, before=before, **LONG).run()
    assert raised
    assert job.used[1].in_place
    assert job.results[1] == alone(ranks=2, **LONG)[1][:10]


@pytest.mark.parametrize("raised", [None, KeyboardInterrupt()])
def test_who_agrees_in_its_last_look_is_bound_by_that(raised):
    memory = SquashMemory(every=5)
    squash = Squasher(Watched(slots=64).handle.state, Page(memory.fd, 1), 1, wait_s=0.0)
    squash._raised = raised
    cell = Page(memory.fd, 1).cell(0, 0)
    cell.words[layout.C_PID] = os.getpid()
    looks = []

    def done():
        looks.append(True)
        return len(looks) == 6

    assert squash._wait(cell, done, bound=lambda: len(looks) >= 3)
    memory.close()


class Pair:
    """A root and its sharer, which make their updates one after the other on this thread."""

    def __init__(self, make=OPTIMIZERS["adamw"], every=50, *, weighs=False):
        wait_s = 0.005  # the sharer cannot answer before the root's update is over
        self.memory = SquashMemory(every=every, weighs=weighs)
        self.memory.group([[0, 1]])
        self.watched = [Watched(slots=64) for _ in range(2)]
        self.squashers = [
            Squasher(watched.handle.state, Page(self.memory.fd, rank), rank, wait_s=wait_s)
            for rank, watched in enumerate(self.watched)
        ]
        self.optimizers = [make([torch.nn.Parameter(torch.ones(3000))]) for _ in range(2)]

    def update(self, number):
        for squash, optimizer in zip(self.squashers, self.optimizers, strict=True):
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad = torch.full_like(parameter, float(number))
            squash.step(optimizer, optimizer.step, plain=True)

    def digest(self, rank):
        return contents.digest(self.optimizers[rank].param_groups[0]["params"][0])


@pytest.fixture
def pair():
    found = Pair()
    yield found
    found.memory.close()


@pytest.mark.parametrize(
    ("how", "writes"), [({"nesterov": True, "foreach": True}, True), ({"nesterov": True}, False)]
)
def test_an_update_that_writes_into_gradients_is_computed_by_all(how, writes):
    pair = Pair(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, **how))
    for number in range(1, 5):
        pair.update(number)
        gradients = [o.param_groups[0]["params"][0].grad for o in pair.optimizers]
        assert torch.equal(*gradients)
    assert pair.digest(0) == pair.digest(1)
    said = [json.loads(text)["why"] for text in map(pair.memory.stopped, range(2)) if text]
    assert said == (["SGD writes into gradients"] if writes else [])
    assert pair.memory.use(1).taken_over == (0 if writes else 3)
    pair.memory.close()


@pytest.mark.parametrize(("update_ns", "taken_over"), [(1, 11), (10**9, 29)])
def test_an_optimizer_that_is_not_worth_handing_over_is_computed_by_all(update_ns, taken_over, monkeypatch):
    pair = Pair(weighs=True)
    now = [0]

    def tick():
        now[0] += 1000
        return now[0]

    monkeypatch.setattr(squasher.time, "perf_counter_ns", tick)
    real = pair.optimizers[0].step

    def step():
        now[0] += update_ns
        real()

    monkeypatch.setattr(pair.optimizers[0], "step", step)
    for number in range(1, 31):
        pair.update(number)
    assert pair.digest(0) == pair.digest(1)
    assert pair.memory.use(1).taken_over == taken_over
    assert ("AdamW: handing over takes" in pair.memory.left_out(0)) is (taken_over < 29)
    assert pair.memory.stopped(0) == pair.memory.stopped(1) == ""
    pair.memory.close()


def in_child(ask, meanwhile):
    """What `ask` returns in a forked child, after `meanwhile` has run here. 64 bits."""
    (go, say_go), (said, say) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(go, 1)
        os.write(say, ask().to_bytes(8, "little"))
        os._exit(0)
    meanwhile()
    os.write(say_go, b"g")
    answer = int.from_bytes(os.read(said, 8), "little")
    os.waitpid(child, 0)
    for fd in (go, say_go, said, say):
        os.close(fd)
    return answer


def test_a_forked_child_keeps_the_parameters_that_it_was_forked_with(pair):
    for number in range(1, 4):
        pair.update(number)
    assert pair.memory.use(1).taken_over == 2
    before = pair.digest(1)

    def two_updates_more():
        pair.update(4)
        pair.update(5)

    pair.squashers[1].before_fork()
    assert in_child(lambda: pair.digest(1), two_updates_more) == before
    assert pair.digest(1) == pair.digest(0) != before
    assert pair.memory.use(1).taken_over == 4, "they squash on"


def test_a_fork_on_another_thread_leaves_the_pages_to_the_main_thread(pair):
    pair.update(1)
    pair.update(2)
    words = Page(pair.memory.fd, 1).cell(0, 0).words
    thread = threading.Thread(target=pair.squashers[1].before_fork)
    thread.start()
    thread.join()
    assert words[layout.C_SHOWS + 1] == 1
    pair.squashers[1].before_fork()
    assert words[layout.C_SHOWS + 1] == 0
