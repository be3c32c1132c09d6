"""Save and restore of real training: bit-identical, also after SIGKILL, and honest about what was skipped."""

import contextlib
import gc
import hashlib
import multiprocessing
import os
import random
import signal
import threading
import time
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from pulsetrain.checkpoint import checkpointer
from pulsetrain.checkpoint.checkpointer import Checkpointer
from pulsetrain.checkpoint.memory.arena import ArenaReader, ArenaWriter, create_arena
from pulsetrain.checkpoint.memory.slots import history_of
from pulsetrain.core.errors import CheckpointError, CorruptData
from tests.checkpoint.trainers import wait_until
from tests.collectors.rank.watched import Watched


class Training:
    """A small model with dropout, batch norm, AdamW, a schedule and a data position."""

    def __init__(self, fd: int | None = None, restore_step: int = -1, **options) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "ema": torch.zeros(3),
            "position": 0,
        }
        environ = {"RANK": "0", "WORLD_SIZE": "1", "PULSETRAIN_RESTORE_STEP": str(restore_step)}
        if fd is not None:
            environ["PULSETRAIN_ARENA_FD"] = str(fd)
        self.checkpointer = Checkpointer(self.state, environ=environ, **options)

    def step(self) -> None:
        x = torch.randn(4, 8) * random.random() + float(np.random.rand())
        self.optimizer.zero_grad()
        self.model(x).pow(2).mean().backward()
        self.optimizer.step()
        self.schedule.step()
        self.checkpointer.wait()
        self.state["ema"] += 0.1
        self.state["position"] += 4

    def train(self, first: int, last: int) -> str:
        for step in range(first, last + 1):
            self.step()
            self.checkpointer.save(step)
        return self.digest()

    def digest(self) -> str:
        h = hashlib.sha256()
        for tensor in [*self.model.state_dict().values(), self.state["ema"]]:
            h.update(tensor.numpy().tobytes())
        h.update(repr((self.state["position"], self.schedule.state_dict()["last_epoch"])).encode())
        return h.hexdigest()


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums depend on the number of threads; runs that are compared use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fd():
    fd = create_arena()
    yield fd
    os.close(fd)


@pytest.mark.parametrize("blocking", [False, True])
def test_training_continues_bit_identical_after_a_restore(fd, blocking):
    reference = Training().train(1, 12)
    first = Training(fd, blocking=blocking)
    first.train(1, 7)
    first.checkpointer.close()
    again = Training(fd, restore_step=7, blocking=blocking)
    assert again.checkpointer.restore() == 7
    assert again.train(8, 12) == reference


def test_an_older_step_can_be_restored_and_the_newer_ones_are_forgotten(fd):
    reference = Training().train(1, 9)
    first = Training(fd)
    first.train(1, 7)
    first.checkpointer.close()
    again = Training(fd, restore_step=6)
    assert again.checkpointer.restore() == 6
    assert max(i.step for i in ArenaReader(fd).published()) == 6
    assert again.train(7, 9) == reference


@pytest.mark.parametrize("part", ["begin", "finish"])
def test_a_save_that_is_interrupted_holds_up_no_other(fd, part, monkeypatch):
    training = Training(fd)
    training.train(1, 2)

    def interrupt(pairs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.checkpointer._copier, part, interrupt)
        with pytest.raises(KeyboardInterrupt):
            training.checkpointer.save(3)
    assert ArenaReader(fd).newest.step == 2
    later = []
    worker = threading.Thread(target=lambda: later.append(training.train(3, 3)), daemon=True)
    worker.start()
    worker.join(20)
    assert later
    assert ArenaReader(fd).newest.step == 3


def test_half_an_update_is_not_saved(fd, monkeypatch):
    watched = Watched()
    monkeypatch.setattr(checkpointer, "process_handle", lambda: watched.handle)
    training = Training(fd)
    training.train(1, 2)
    watched.handle.state.update_lost = lambda: True
    assert "half done" in training.checkpointer.save(3).skipped
    watched.handle.state.update_lost = lambda: False
    assert ArenaReader(fd).newest.step == 2
    assert training.checkpointer.save(3).wait().step == 3


def test_a_save_by_a_signals_handler_that_interrupts_another_is_skipped(fd, monkeypatch):
    training = Training(fd)
    training.train(1, 1)
    inner = []
    begin = training.checkpointer._copier.begin

    def interrupted(pairs):
        if not inner:
            inner.append(training.checkpointer.save(2, durable=True))
        begin(pairs)

    monkeypatch.setattr(training.checkpointer._copier, "begin", interrupted)
    training.step()
    assert training.checkpointer.save(2).wait().step == 2
    assert "interrupted" in inner[0].skipped
    assert training.checkpointer.save(3).wait().step == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_copy_of_the_rank_waits_for_no_copy_and_saves_nothing(fd, monkeypatch):
    training = Training(fd)
    training.train(1, 1)
    go = threading.Event()
    copier = training.checkpointer._copier
    monkeypatch.setattr(copier, "cpu_bound", False)  # the checkpoint thread copies
    finish = copier.finish
    monkeypatch.setattr(copier, "finish", lambda pairs: (go.wait(20), finish(pairs)))
    result = training.checkpointer.save(2)
    assert result.status == "copying"
    child = os.fork()
    if not child:
        signal.alarm(20)
        training.checkpointer.wait()
        os._exit(7 if "fork" in training.checkpointer.save(3).skipped else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    go.set()
    assert result.wait().step == 2
    assert ArenaReader(fd).newest.step == 2


def test_a_forked_copy_of_the_rank_restores_and_leaves_the_ranks_checkpoints_as_they_are(fd):
    training = Training(fd)
    training.state["ema"].fill_(1)
    training.checkpointer.save(1).wait()
    training.state["ema"].fill_(2)
    training.checkpointer.save(2).wait()
    child = os.fork()
    if child == 0:
        restored = training.checkpointer.restore(1), training.state["ema"].tolist()
        nothing = training.checkpointer.restore()
        os._exit(7 if (restored, nothing) == ((1, [1.0, 1.0, 1.0]), None) else 8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert [info.step for info in ArenaReader(fd).published()] == [2, 1]
    training.checkpointer.close()


def test_two_threads_save_one_after_the_other(fd):
    both = threading.Barrier(2)

    class Part:
        def state_dict(self):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(timeout=0.2)
                at_once.append(True)
            return {}

        def load_state_dict(self, state):
            pass

    at_once = []
    checkpointer = Checkpointer({"part": Part()}, environ={"PULSETRAIN_ARENA_FD": str(fd)})
    threads = [threading.Thread(target=checkpointer.save, args=(step,)) for step in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not at_once
    assert {info.step for info in ArenaReader(fd).published()} == {1, 2}
    checkpointer.close()


@pytest.mark.parametrize("step", [-3, 1 << 63, 5.0, "9", None, torch.ones(2)])
def test_a_step_that_is_none_is_skipped_and_the_loop_goes_on(fd, step):
    training = Training(fd)
    result = training.checkpointer.save(step, durable=True)
    assert not result
    assert "allowed: integers from 0" in result.status
    assert "allowed: integers from 0" in ArenaReader(fd).skip_reason
    assert ArenaReader(fd).published() == []
    assert training.checkpointer.save(torch.tensor(8)).wait().step == 8
    training.checkpointer.close()


def test_a_module_without_shapes_yet_can_begin_anew(fd):
    model = torch.nn.LazyLinear(2)
    checkpointer = Checkpointer({"model": model}, environ={"PULSETRAIN_ARENA_FD": str(fd)})
    assert checkpointer.restore() is None
    model(torch.ones(1, 3))
    assert checkpointer.save(0).wait().step == 0
    checkpointer.close()


def test_saves_of_one_step_are_told_apart_in_their_order(fd):
    training = Training(fd)
    seen = []
    for step in (5, 5, 6, 4, 5):
        training.checkpointer.save(step).wait()
        newest = ArenaReader(fd).newest
        seen.append((newest.step, newest.edition))
    assert [step for step, _ in seen] == [5, 5, 6, 4, 5]
    assert len(set(seen)) == 5
    assert seen[0] == (5, 0)
    assert [history_of(edition) for _, edition in seen] == [0, 0, 0, 1, 1]
    training.checkpointer.restore(4)
    training.checkpointer.save(5).wait()
    assert history_of(ArenaReader(fd).newest.edition) == 2


def test_the_copy_beside_forward_and_backward_is_as_of_the_saved_step(fd):
    """The optimizer's hook holds the change back until the copy is complete, however slow the copy is."""
    training = Training(fd)
    training.train(1, 3)
    expected = training.digest()
    training.checkpointer._last.wait(40)
    finish = training.checkpointer._copier.finish
    release = threading.Event()

    def slow(pairs):
        release.wait(40)
        finish(pairs)

    training.checkpointer._copier.finish = slow
    training.checkpointer._copier.cpu_bound = False  # it waits for something, as a device's copy does
    result = training.checkpointer.save(3)
    assert result.status == "copying"

    def release_when_awaited():
        wait_until(lambda: result.waiting_since_ns)
        time.sleep(0.05)
        release.set()

    threading.Thread(target=release_when_awaited).start()
    training.step()  # forward, backward, and an optimizer step that has to wait
    assert release.is_set()
    assert result.wait(40).blocked_ns > 20e6  # what training waited is on record
    training.checkpointer.close()
    again = Training(fd, restore_step=3)
    again.checkpointer.restore()
    assert again.digest() == expected


def test_without_an_agent_there_is_no_peer_and_no_storage_to_wait_for():
    result = Training().checkpointer.save(1)
    assert result.wait_replicated(40) is False
    with pytest.raises(CheckpointError, match="this job has none"):
        result.wait_durable(40)


def test_training_goes_on_where_memory_is_too_short_for_a_save(fd):
    training = Training(fd)
    training.checkpointer._arena = ArenaWriter(fd, lambda: 1000)
    training.step()
    result = training.checkpointer.save(1)
    assert not result
    assert "MB more memory, 0.0 MB are left" in result.status
    assert ArenaReader(fd).skip_count == 1
    training.step()


def test_a_parameter_that_is_changed_while_it_is_copied_fails_one_save_and_is_copied_at_once_then(fd):
    training = Training(fd)
    training.train(1, 3)
    checkpointer, (parameter, *_) = training.checkpointer, training.model.parameters()
    checkpointer._last.wait(40)
    finish, release = checkpointer._copier.finish, threading.Event()

    def slow(pairs):
        release.wait(40)
        finish(pairs)

    def save(step):
        release.clear()
        result = checkpointer.save(step)
        with torch.no_grad():
            parameter.add_(1)
        release.set()
        return result

    checkpointer._copier.finish, checkpointer._copier.cpu_bound = slow, False
    with pytest.raises(CheckpointError, match=r"model.* was changed while it was copied \(call wait\(\)"):
        save(4).wait(40)
    assert max(i.step for i in ArenaReader(fd).published()) == 3
    training.step()
    expected = parameter.detach().clone()
    assert save(5).wait(40).step == 5
    training.step()
    assert checkpointer.save(6).wait(40).step == 6  # an optimizer's step is not too early
    checkpointer.close()
    again = Training(fd, restore_step=5)
    again.checkpointer.restore()
    assert torch.equal(next(again.model.parameters()), expected)


def test_an_optimizer_in_one_graph_is_compiled_and_saves_are_copied_before_it_steps(fd, monkeypatch):
    class Descent(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)

    monkeypatch.setattr("pulsetrain.checkpoint.checkpointer._COPY_AT_ONCE_BYTES", 0)
    model = torch.nn.Linear(2, 1)
    optimizer = Descent(model.parameters(), {})
    state = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer(state, environ={"PULSETRAIN_ARENA_FD": str(fd)})
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    for number in range(3):
        model(torch.ones(1, 2)).sum().backward()
        step()
        result = checkpointer.save(number)
        assert result.copied
        result.wait()
    saved = model.weight.detach().clone()
    step()
    assert not torch.equal(model.weight, saved)
    assert checkpointer.restore(2) == 2
    assert torch.equal(model.weight, saved)
    checkpointer.close()


def test_training_waits_for_peers_only_with_a_lag_and_only_once(fd, monkeypatch):
    from pulsetrain.checkpoint import peer_lag as module

    monkeypatch.setattr(module, "LAG_TIMEOUT_S", 0.05)
    training = Training(fd)
    training.train(1, 1)
    agent, started = ArenaReader(fd), time.monotonic()
    agent.lag_steps = 1
    training.checkpointer.wait()  # nobody answers
    assert time.monotonic() - started >= 0.05
    monkeypatch.setattr(module, "LAG_TIMEOUT_S", 30)
    started = time.monotonic()
    training.step()
    assert time.monotonic() - started < 30  # and is not waited for again
    result = training.checkpointer.save(2)
    result.wait(40)
    with pytest.raises(CheckpointError, match="step 2 is not in a peer's memory after"):
        result.wait_replicated(0.01)
    agent.replicated_step = 2
    result.wait_replicated(1)
    training.checkpointer.wait()
    assert not training.checkpointer._peer_lag.gave_up


def test_the_arena_grows_while_the_first_steps_run(fd):
    """After `restore` the arena grows for the optimizer's coming state too; the first save grows nothing."""
    training = Training(fd)
    assert training.checkpointer.restore() is None
    training.checkpointer._preparer.join(40)
    size = os.fstat(fd).st_size
    assert not training.checkpointer._arena.unpopulated
    training.train(1, 3)
    training.checkpointer._last.wait(40)
    assert os.fstat(fd).st_size == size


def test_a_skipped_save_has_its_reason(fd):
    training = Training(fd, every=10)
    result = training.checkpointer.save(7)
    assert not result
    assert result.status == "skipped: not a multiple of every = 10"
    with pytest.raises(CheckpointError, match="was skipped"):
        result.wait()


def test_a_step_that_the_agent_asks_for_is_saved_whatever_the_interval_is(fd):
    training = Training(fd, every=10)
    ArenaReader(fd).wanted_step = 7
    assert not training.checkpointer.save(6)
    assert training.checkpointer.save(7)
    assert training.checkpointer.save(8)


def test_after_a_failed_copy_training_goes_on(fd):
    training = Training(fd)
    training.train(1, 2)
    training.checkpointer._last.wait(40)

    def broken(pairs):
        raise RuntimeError("no such luck")

    training.checkpointer._copier.finish = broken
    result = training.checkpointer.save(3)
    training.step()
    with pytest.raises(CheckpointError, match="no such luck"):
        result.wait(40)
    assert not result
    assert ArenaReader(fd).published()[0].step == 2
    assert (ArenaReader(fd).skip_step, ArenaReader(fd).skip_reason) == (3, "no such luck")


def test_a_save_without_memory_for_its_copies_fails_and_the_loop_goes_on(fd, monkeypatch):
    training = Training(fd)

    def out_of_memory(pairs):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(training.checkpointer._copier, "begin", out_of_memory)
        result = training.checkpointer.save(1)
    assert not result
    assert "out of memory" in result.status
    training.step()  # the optimizer does not wait for a copy that never comes
    assert training.checkpointer.save(2)


def test_a_second_one_beside_the_first_is_refused(fd):
    first = Training(fd)
    with pytest.raises(CheckpointError, match="a second Checkpointer in one process"):
        Training(fd)
    first.checkpointer.close()
    second = Training(fd)
    del second
    Training(fd)  # nothing refers to the second any more
    Training()  # it has an arena of its own


def test_nothing_to_restore_empties_the_arena(fd):
    training = Training(fd)
    training.train(1, 3)
    assert training.checkpointer.restore() is None
    assert ArenaReader(fd).published() == []


@pytest.mark.parametrize("world", [1, 2])
def test_random_generators_come_back_only_in_a_world_of_the_same_size(fd, world):
    environ = {"RANK": "0", "WORLD_SIZE": "2", "PULSETRAIN_ARENA_FD": str(fd)}
    torch.manual_seed(1)
    Checkpointer({"position": 7}, replicated=True, environ=environ).save(3).wait()
    torch.manual_seed(2)
    state = {"position": 0}
    Checkpointer(state, environ=environ | {"WORLD_SIZE": str(world)}).restore(3)
    assert state["position"] == 7
    assert torch.initial_seed() == {1: 2, 2: 1}[world]
    assert ArenaReader(fd).find(0, 3).replicated


def test_a_missing_step_is_an_error_that_names_the_others(fd):
    training = Training(fd)
    training.train(1, 3)
    training.checkpointer._last.wait(40)
    with pytest.raises(CheckpointError, match=r"step 9 of rank 0 is not in the arena; it has: 3, 2, 1"):
        training.checkpointer.restore(9)


def test_flipped_bytes_are_never_restored(fd):
    training = Training(fd)
    training.train(1, 3)
    training.checkpointer.close()
    info = ArenaReader(fd).find(0, 3)
    os.pwrite(fd, b"\xff\xff", ArenaReader(fd).file_offset(info) + info.total_bytes - 3)
    with pytest.raises(CorruptData, match="checksum"):
        training.checkpointer.restore(3)
    assert ArenaReader(fd).find(0, 3) is None


def test_the_path_of_an_unsupported_entry_is_named():
    with pytest.raises(CheckpointError, match=r"odd\.x: a set cannot be saved"):
        Checkpointer({"odd": {"x": {1}}}, environ={}).save(1)


def test_another_model_is_refused(fd):
    training = Training(fd)
    training.train(1, 1)
    training.checkpointer.close()
    other = Checkpointer({"model": torch.nn.Linear(2, 2)}, environ={"PULSETRAIN_ARENA_FD": str(fd)})
    with pytest.raises(CheckpointError, match="model and checkpoint differ"):
        other.restore(1)


def test_optimizer_state_keeps_its_element_type(fd):
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["master"] = torch.tensor([1.0, 1.0009765625, 3.3, 4.4])
    state = {"p": parameter.data, "o": optimizer}
    Checkpointer(state, environ={"PULSETRAIN_ARENA_FD": str(fd)}).save(1).wait(40)
    saved = optimizer.state[parameter]["master"].clone()
    optimizer.state[parameter]["master"].zero_()
    Checkpointer(state, environ={"PULSETRAIN_ARENA_FD": str(fd)}).restore(1)
    assert optimizer.state[parameter]["master"].dtype == torch.float32
    assert torch.equal(optimizer.state[parameter]["master"], saved)


def test_every_kind_of_leaf_comes_back(fd):
    state = {
        "a": {"list": [1, 2.5, None, True, "x"], "tuple": (1, (2,)), 3: float("inf")},
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "half": torch.arange(5, dtype=torch.bfloat16),
    }
    environ = {"PULSETRAIN_ARENA_FD": str(fd)}
    Checkpointer(dict(state), environ=environ).save(1).wait(40)
    blank = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else {} for k, v in state.items()}
    Checkpointer(blank, environ=environ).restore(1)
    assert blank["a"] == state["a"]
    assert all(torch.equal(blank[k], state[k]) for k in ("empty", "scalar", "flags", "half"))


def test_the_hook_does_not_keep_a_checkpointer_alive():
    import weakref

    training = Training()
    training.train(1, 1)
    gone = weakref.ref(training.checkpointer)
    training.checkpointer._last.wait(40)
    training.checkpointer._thread.shutdown(wait=True)
    del training
    gc.collect()
    assert gone() is None


class Descent(torch.optim.Optimizer):
    """An optimizer of a script's own, whose step is one graph."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def test_a_step_that_is_compiled_as_a_whole_stays_one_graph_and_changes_no_copy(fd, monkeypatch):
    monkeypatch.setattr("pulsetrain.checkpoint.checkpointer._COPY_AT_ONCE_BYTES", 0)
    training = Training(fd)
    optimizer = Descent(training.model.parameters())
    torch._dynamo.reset()
    compiled = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    for step in range(1, 4):
        training.model(torch.ones(4, 8)).sum().backward()
        compiled()
        assert training.checkpointer.save(step).copied
    torch._dynamo.reset()


@pytest.mark.integration
@pytest.mark.timeout(400)  # a minute alone, several beside other work
def test_a_rank_killed_at_any_moment_costs_at_most_the_step_in_flight(fd):
    """100 real processes, each killed at a random moment of training that saves every step."""
    reference: dict[int, str] = {}
    truth = Training()
    for step in range(1, 400):
        truth.step()
        reference[step] = truth.digest()
    draw = random.Random(5)
    restore, torn = -1, 0
    clean = multiprocessing.get_context("forkserver")  # torch in a fork of this process may not work
    clean.set_forkserver_preload([__name__])
    for trial in range(100):
        reader, write_end = os.pipe()
        given = (DupFd(fd), restore, DupFd(write_end), torch.get_num_threads())
        child = clean.Process(target=_train_until_killed, args=given)
        child.start()
        enough = draw.randint(1, 4)
        announced = restore
        with os.fdopen(reader, "rb", buffering=0) as lines:
            while announced < max(restore, 0) + enough:
                line = _announced(lines, child)
                assert line, f"trial {trial}: the child died by itself"
                announced = int.from_bytes(line, "little")
            _spin(draw.randint(0, 3000))
            child.kill()
            child.join()
            os.close(write_end)
            while line := lines.read(4):
                announced = int.from_bytes(line, "little")
        arena = ArenaReader(fd)
        torn += arena.unfinished > 0
        newest = arena.published()[0]
        assert arena.verify(newest), f"trial {trial}"
        assert newest.step >= announced - 1, f"trial {trial}: lost more than the step in flight"
        again = Training(fd, restore_step=newest.step)
        assert again.checkpointer.restore() == newest.step
        assert again.digest() == reference[newest.step], (
            f"trial {trial}: step {newest.step} is not what was trained"
        )
        again.checkpointer.close()
        restore = newest.step
        if restore > 380:
            restore = -1
    assert torn > 50, "most kills land in the middle of a save"


def _announced(lines, child) -> bytes:
    """The next step that the child announces, b"" where it has ended."""
    wait([lines, child.sentinel])
    return lines.read(4) if wait([lines], timeout=0) else b""


def _train_until_killed(arena, restore: int, lines, threads: int) -> None:
    """Train and announce each step when its save was called. Sums depend on the number of `threads`."""
    torch.set_num_threads(threads)
    announce = lines.detach()
    training = Training(arena.detach(), restore_step=restore)
    step = training.checkpointer.restore() or 0
    finish = training.checkpointer._copier.finish
    training.checkpointer._copier.cpu_bound = False  # the copy runs beside training, as that of a large state

    def slowly(pairs):
        """Stop in the middle of the copy, so that kills land there."""
        half = len(pairs.optimizer_owned[0]) // 2
        finish(pairs._replace(optimizer_owned=tuple(part[:half] for part in pairs.optimizer_owned)))
        time.sleep(0.003)
        finish(pairs._replace(optimizer_owned=tuple(part[half:] for part in pairs.optimizer_owned)))

    training.checkpointer._copier.finish = slowly
    while step < 399:
        step += 1
        training.step()
        training.checkpointer.save(step)
        os.write(announce, step.to_bytes(4, "little"))


def _spin(iterations: int) -> None:
    """Pass a little time without sleeping."""
    for _ in range(iterations):
        os.getpid()


@pytest.mark.parametrize("other", [False, True])
def test_a_process_that_a_rank_started_saves_into_an_arena_of_its_own(tmp_path, other):
    (tmp_path / "file").write_bytes(b"not an arena" * 1000)
    file = os.open(tmp_path / "file", os.O_RDWR)
    if not other:
        os.close(file)
    state = {"position": 3}
    environ = {"PULSETRAIN_ARENA_FD": str(file), "PULSETRAIN_RESTORE_STEP": "7"}
    with capture_logs() as logs:
        checkpointer = Checkpointer(state, environ=environ)
    assert [line["event"] for line in logs] == ["checkpoints_private"]
    assert checkpointer.restore() is None
    checkpointer.save(1, durable=True).wait(40)
    state["position"] = 4
    assert checkpointer.restore(1) == 1
    assert state["position"] == 3
    checkpointer.close()
    if other:
        os.close(file)
