"""A checkpoint saved at one parallel shape is loaded at another: bit-equal, optimizer included."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pulsetrain.checkpoint.reshard import load_resharded
from pulsetrain.core.errors import CheckpointError, CorruptData, UsageError
from tests.checkpoint.extra_state import copying, extra_of, layers
from tests.checkpoint.stored import commit_arrays, commit_states
from tests.repository import ROOT


def plan(name: str, tp: int, pp: int, dp: int, load: str | None, *, plain: bool = False) -> dict:
    return {"name": name, "tp": tp, "pp": pp, "dp": dp, "load": load, "plain": plain}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_shape_has_the_same_bits_and_trains_on_equally(tmp_path):
    plans = [
        plan("origin", 2, 2, 2, None),
        plan("dp4", 1, 1, 4, "origin"),
        plan("tp4pp2", 4, 2, 1, "origin"),
        plan("one", 1, 1, 1, "origin", plain=True),
        plan("back-from-one", 2, 2, 2, "one"),
        plan("back-from-tp4", 2, 2, 2, "tp4pp2"),
        plan("back-from-dp4", 2, 2, 2, "dp4"),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.sharded_job", str(tmp_path), json.dumps(plans)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=460,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]

    def gathered(name: str) -> tuple[dict, dict, set]:
        digests, losses, settings_seen = {}, {}, set()
        for file in tmp_path.glob(f"{name}-[0-9].json"):
            report = json.loads(file.read_text())
            for key, value in report["digests"].items():
                assert digests.setdefault(key, value) == value, f"{name}: ranks disagree on {key}"
            losses.update(report["losses"])
            settings_seen.add((report["seen"], report["lr"]))
        return digests, losses, settings_seen

    expected, losses, settings_seen = gathered("origin")
    assert len(expected) == 4 * 5 * 4  # five parameters of four blocks, each with three optimizer tensors
    for job in plans[1:]:
        digests, next_losses, found = gathered(job["name"])
        assert digests == expected, job["name"]
        assert found == settings_seen
        assert next_losses == pytest.approx(losses, rel=1e-6)
    for file in tmp_path.glob("tp4pp2-[0-9].json"):  # nobody reads the whole model
        report = json.loads(file.read_text())
        assert report["bytes_read"] < 4 * report["held"]


def test_a_module_whose_state_is_a_copy_is_loaded(tmp_path):
    saved = torch.nn.Linear(2, 1)
    commit_states(tmp_path, {0: {"model": saved}})
    model = copying(torch.nn.Linear(2, 1))
    load_resharded(str(tmp_path), "j", {"model": model})
    assert torch.equal(model.weight, saved.weight)
    assert torch.equal(model.bias, saved.bias)


def test_parameters_that_differ_between_ranks_are_not_taken_from_the_first(tmp_path):
    models = [torch.nn.Linear(2, 1) for _ in range(2)]
    orders = [Order(torch.tensor([rank])) for rank in range(2)]
    commit_states(tmp_path, {r: {"model": models[r], "order": orders[r]} for r in range(2)})
    order = Order(torch.tensor([7]))
    load_resharded(str(tmp_path), "j", {"order": order})  # an object's state is rank 0's
    assert order.next.tolist() == [0]
    model = torch.nn.Linear(2, 1)
    with pytest.raises(CheckpointError, match=r"model.weight: rank 1 has saved other values"):
        load_resharded(str(tmp_path), "j", {"model": model})
    with pytest.raises(CheckpointError, match=r"model.weight: rank 1 has saved other values"):
        load_resharded(str(tmp_path), "j", {"model": model}, may_differ="ema.")  # no list of letters
    with pytest.raises(UsageError, match='has ""'):
        load_resharded(str(tmp_path), "j", {"model": model}, may_differ=[""])
    load_resharded(str(tmp_path), "j", {"model": model}, may_differ="model.")
    assert torch.equal(model.weight, models[0].weight)


@pytest.mark.parametrize(
    "state",
    [
        {"ema": {1: torch.ones(2), "1": torch.zeros(2)}},
        {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}},
    ],
)
def test_tensors_of_one_name_are_not_taken_for_each_other(tmp_path, state):
    commit_states(tmp_path, {0: state})
    with pytest.raises(CheckpointError, match="several tensors of one rank have this name"):
        load_resharded(str(tmp_path), "j", state)


class Order:
    """In which order a rank reads its samples."""

    def __init__(self, following: torch.Tensor) -> None:
        self.next = following

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


WORLD = 3


def run_ranks(main, folder: Path) -> None:
    """Run `main(rank, folder)` in a process for each rank of a gloo group."""
    pids = []
    for rank in range(WORLD):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                dist.init_process_group(
                    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
                )
                main(rank, folder)
                dist.barrier()
                dist.destroy_process_group()
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * WORLD


def rank_main(rank: int, folder: Path) -> None:
    """Ranks 0 and 1 need the shared tensor and one of their own, rank 2 only its own."""
    names = {"w"} if rank == 2 else {f"x{rank}", "shared"}
    state = {name: torch.zeros(64) for name in sorted(names)}
    step, read = load_resharded(str(folder / "store"), "j", state, group=dist.group.WORLD)
    found = {name: float(tensor.sum()) for name, tensor in state.items()}
    (folder / f"{rank}.json").write_text(json.dumps({"step": step, "read": read, "found": found}))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_content_that_two_ranks_need_is_read_by_one_of_them(tmp_path):
    values = {"shared": 1.0, "x0": 2.0, "x1": 3.0, "w": 4.0}
    shards = {0: [(n, np.full(64, v, dtype=np.float32), (), ()) for n, v in values.items()]}
    commit_arrays(tmp_path / "store", shards)
    run_ranks(rank_main, tmp_path)
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)]
    for report in reports:
        assert report["step"] == 1
        assert report["found"] == {name: 64 * values[name] for name in report["found"]}
    assert sum(r["read"] for r in reports) == 4 * 256  # four tensors, each once
    assert reports[2]["read"] == 256


def told(rank: int, folder: Path, what: object) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(what))


def loads_what_it_sees(rank: int, folder: Path) -> None:
    """Rank 1 sees a step that was committed a moment ago, the others do not yet."""
    state = {"w": torch.zeros(64)}
    store = folder / ("newer" if rank == 1 else "older")
    step, _ = load_resharded(str(store), "j", state, group=dist.group.WORLD)
    told(rank, folder, [step, float(state["w"][0])])


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ranks_that_see_different_newest_steps_load_one(tmp_path):
    for store, steps in (("older", (1,)), ("newer", (1, 2))):
        for step in steps:
            whole = np.full(64, float(step), dtype=np.float32)
            commit_arrays(tmp_path / store, {0: [("w", whole, (), ())]}, step)
    run_ranks(loads_what_it_sees, tmp_path)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)] == [
        [1, 1.0]
    ] * WORLD


def wants_what_is_missing(rank: int, folder: Path) -> None:
    state = {"unknown" if rank == 1 else "w": torch.ones(64)}
    try:
        load_resharded(str(folder / "store"), "j", state, group=dist.group.WORLD)
    except CheckpointError as error:
        told(rank, folder, [str(error), float(next(iter(state.values()))[0])])


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_where_one_rank_finds_no_tensor_all_say_so_and_nothing_is_changed(tmp_path):
    commit_arrays(tmp_path / "store", {0: [("w", np.zeros(64, dtype=np.float32), (), ())]})
    run_ranks(wants_what_is_missing, tmp_path)
    for rank in range(WORLD):
        error, value = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "no tensor unknown" in error
        assert error.startswith("rank 1 cannot read") or rank == 1
        assert value == 1.0


def wants_what_is_damaged(rank: int, folder: Path) -> None:
    state = {"w": torch.ones(64)}
    try:
        load_resharded(str(folder / "store"), "j", state, group=dist.group.WORLD)
    except (CheckpointError, CorruptData) as error:
        told(rank, folder, [type(error).__name__, float(state["w"][0])])


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_where_the_rank_that_reads_for_others_finds_damage_nobody_waits_for_it(tmp_path):
    commit_arrays(tmp_path / "store", {0: [("w", np.zeros(64, dtype=np.float32), (), ())]})
    damage(tmp_path / "store", 0)
    run_ranks(wants_what_is_damaged, tmp_path)
    for rank in range(WORLD):
        assert json.loads((tmp_path / f"{rank}.json").read_text())[1] == 1.0


def damage(store: Path, rank: int) -> None:
    """Change the last byte of what a rank has saved."""
    pack = next(store.glob(f"j/*/{rank}.pack"))
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)


def test_a_failed_load_that_was_planned_first_puts_nothing_of_its_own_into_the_model(tmp_path):
    torch.manual_seed(1)
    saved = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(saved.parameters())
    saved(torch.ones(4)).sum().backward()
    optimizer.step()
    commit_states(tmp_path, {0: {"model": saved, "optimizer": optimizer}})
    damage(tmp_path, 0)
    model = torch.nn.Linear(4, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    live = torch.optim.Adam(model.parameters())
    with pytest.raises(CorruptData):
        load_resharded(str(tmp_path), "j", {"optimizer": live, "model": model}, show_progress=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert live.state_dict()["state"] == {}


def test_progress_is_the_bytes_that_came_of_those_that_are_needed(tmp_path, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def shown(what, *, total, unit):
        yield lambda done, of=None: seen.append((what, done, total, unit))

    monkeypatch.setattr("pulsetrain.checkpoint.reshard.progress", shown)
    shards = {0: [(name, np.ones(64, dtype=np.float32) * n, (), ()) for n, name in enumerate("abc")]}
    commit_arrays(tmp_path, shards)
    state = {"a": torch.zeros(64), "c": torch.zeros(64)}
    load_resharded(str(tmp_path), "j", state, show_progress=True)
    assert seen == [("Loading step 1", done, 512, "bytes") for done in (256, 512)]
    assert float(state["c"].sum()) == 128


class Counting(torch.optim.Optimizer):
    """Keeps numbers, lists and nothing at all, as optimizers of other libraries do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.5})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.setdefault(p, {})
                if p.dim() > 1:
                    state.setdefault("factors", [p.detach() + 1, [p.detach() + 2], None])
                state["step"] = state.get("step", 0) + 1


class Ema:
    """Shadows of parameters, and a generator that refuses a state that is none."""

    def __init__(self, module):
        self.shadows = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.generator, self.counts = torch.Generator(), np.zeros(3)

    def state_dict(self):
        of_generator = {"generator": self.generator.get_state(), "counts": self.counts}
        return {"shadows": self.shadows, "updates": 7, **of_generator}

    def load_state_dict(self, saved):
        self.generator.set_state(saved["generator"])
        self.shadows, self.counts = saved["shadows"], saved["counts"]


def stage(*names, seed=0):
    """A stage of a pipeline, and what belongs to it."""
    torch.manual_seed(seed)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 3) for name in names})
    optimizer = Counting(model.parameters())
    return {"model": model, "optimizer": optimizer}


def optimizer_state(state):
    names = {p: name for name, p in state["model"].named_parameters()}
    return {names[p]: of for p, of in state["optimizer"].state.items()}


def test_numbers_and_nested_state_of_an_optimizer_come_back_from_whichever_rank_has_them(tmp_path):
    stages = {rank: stage(name, seed=rank) for rank, name in enumerate("ab")}
    for rank, saved in stages.items():
        for _ in range(rank + 2):
            saved["optimizer"].step()
    commit_states(tmp_path, stages)
    one = stage("a", "b", seed=9)
    load_resharded(str(tmp_path), "j", one)
    expected = optimizer_state(stages[0]) | optimizer_state(stages[1])
    found = optimizer_state(one)
    assert {name: of["step"] for name, of in found.items()} == {
        "a.weight": 2, "a.bias": 2, "b.weight": 3, "b.bias": 3,
    }  # fmt: skip
    for name in ("a.weight", "b.weight"):
        first, (second,), nothing = found[name]["factors"]
        assert nothing is None
        assert torch.equal(first, expected[name]["factors"][0])
        assert torch.equal(second, expected[name]["factors"][1][0])


def test_a_learning_rate_that_is_a_tensor_comes_back_as_one(tmp_path):
    def trained(lr):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(lr))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    commit_states(tmp_path, {0: trained(0.25)})
    live = trained(0.5)
    load_resharded(str(tmp_path), "j", live)
    (group,) = live["optimizer"].param_groups
    assert isinstance(group["lr"], torch.Tensor)
    assert float(group["lr"]) == 0.25
    live["optimizer"].step()


def test_tensors_of_objects_and_numbers_come_back_with_what_they_were(tmp_path):
    saved = stage("a")
    ema = Ema(saved["model"])
    ema.generator.manual_seed(5)
    ema.counts += 4
    extra = {"table": torch.arange(4), "rates": np.arange(3.0)}
    commit_states(tmp_path, {0: {**saved, "ema": ema, "extra": extra}})
    new = stage("a", seed=9)
    state = {**new, "ema": Ema(new["model"]), "extra": None}
    load_resharded(str(tmp_path), "j", state, show_progress=True)
    assert torch.equal(state["ema"].shadows["a.weight"], ema.shadows["a.weight"])
    assert torch.equal(state["ema"].generator.get_state(), ema.generator.get_state())
    assert state["ema"].counts.tolist() == [4.0] * 3
    assert torch.equal(state["extra"]["table"], torch.arange(4))
    assert state["extra"]["rates"].tolist() == [0.0, 1.0, 2.0]


def test_shadows_come_from_the_rank_that_has_saved_them_and_are_refused_where_none_has_all(tmp_path):
    stages = {rank: stage(name, seed=rank) for rank, name in enumerate("ab")}
    saved = {rank: {**one, "ema": Ema(one["model"])} for rank, one in stages.items()}
    commit_states(tmp_path, saved)
    again = stage("b", seed=9)
    state = {**again, "ema": Ema(again["model"])}
    load_resharded(str(tmp_path), "j", state)
    assert torch.equal(state["ema"].shadows["b.bias"], saved[1]["ema"].shadows["b.bias"])
    one = stage("a", "b")
    with pytest.raises(CheckpointError, match=r"ema\.shadows\.b\.bias: no single rank has saved it"):
        load_resharded(str(tmp_path), "j", {**one, "ema": Ema(one["model"])})


def trained(*keys, tied=False):
    """Modules of one optimizer, and an averaged copy that it does not know."""
    torch.manual_seed(len(keys))
    state = {key: torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2, bias=False)}) for key in keys}
    model = state["model"]
    if tied:
        model["last"] = model["first"]
    state["optimizer"] = torch.optim.AdamW(model.parameters())
    model["first"].weight.grad = torch.randn(2, 2)
    return state


def moments(state):
    [parameter] = state["model"].parameters()
    return state["optimizer"].state[parameter]["exp_avg"]


@pytest.mark.parametrize(("before", "after"), [("model", "model ema"), ("model ema", "model")])
def test_state_is_found_whichever_other_modules_were_saved_beside_it(tmp_path, before, after):
    saved = trained(*before.split())
    saved["optimizer"].step()
    commit_states(tmp_path, {0: {"ema": dict(saved["model"].state_dict()), **saved}})
    new = trained(*after.split())
    load_resharded(str(tmp_path), "j", new)
    assert torch.equal(moments(new), moments(saved))


def test_state_of_a_tied_weight_is_found_by_any_of_its_names(tmp_path):
    saved = trained("model")
    saved["optimizer"].step()
    first = torch.nn.Linear(2, 2, bias=False)
    both = torch.nn.ModuleDict({"first": first, "last": saved["model"]["first"]})
    commit_states(tmp_path, {0: {**saved, "model": both}})
    new = trained("model", tied=True)
    load_resharded(str(tmp_path), "j", new)
    assert torch.equal(moments(new), moments(saved))


def test_a_parameter_whose_state_has_another_name_is_refused_with_its_own(tmp_path):
    saved = trained("model", tied=True)
    saved["optimizer"].step()
    commit_states(tmp_path, {0: saved})
    new = trained("model", tied=True)
    new["model"].pop("first")
    with pytest.raises(CheckpointError, match=r"optimizer\.last\.weight: no state of an optimizer was saved"):
        load_resharded(str(tmp_path), "j", new)


def test_a_parameter_that_had_no_gradient_yet_has_no_state_then_either(tmp_path):
    saved = stage("a", "b")
    for parameter in saved["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    saved["optimizer"] = torch.optim.AdamW(saved["model"].parameters())
    saved["model"]["b"].bias.grad = None
    saved["optimizer"].step()
    commit_states(tmp_path, {0: saved})
    new = stage("b", seed=9)
    new["optimizer"] = torch.optim.AdamW(new["model"].parameters())
    load_resharded(str(tmp_path), "j", new)
    assert optimizer_state(new).keys() == {"b.weight"}


def test_state_that_may_be_of_two_parameters_is_refused(tmp_path):
    saved = trained("model")
    saved["optimizer"].step()
    commit_states(tmp_path, {0: {**saved, "more": dict(saved["model"].state_dict())}})
    new = trained("model", "more")
    new["optimizer"] = torch.optim.AdamW([*new["model"].parameters(), *new["more"].parameters()])
    with pytest.raises(CheckpointError, match=r"whether it is the state of model\.first\.weight and more\."):
        load_resharded(str(tmp_path), "j", new)


def test_extra_state_of_a_module_is_loaded_and_refused_where_it_was_not_saved(tmp_path):
    commit_states(tmp_path, {0: {"model": layers(7, "long")}})
    model = layers()
    load_resharded(str(tmp_path), "j", {"model": model}, show_progress=True)
    assert extra_of(model) == (7, [7.0] * 3, "long")
    more = torch.nn.ModuleDict({**layers(), "other": torch.nn.ModuleDict({"scaled": layers()["pickled"]})})
    with pytest.raises(CheckpointError, match=r"no model\.other\.scaled\._extra_state"):
        load_resharded(str(tmp_path), "j", {"model": more})
