"""torch.distributed.checkpoint reads and writes Pulsetrain's checkpoints."""

import dataclasses

import numpy as np
import pytest
import torch

from pulsetrain.checkpoint.memory.slots import next_history
from pulsetrain.checkpoint.storage.backend import open_storage
from pulsetrain.checkpoint.storage.manifest import Checkpoints
from pulsetrain.core.errors import CheckpointError, UsageError
from tests.checkpoint.stored import commit_arrays


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
class TestDcp:
    """torch.distributed.checkpoint in one process, without a process group."""

    @staticmethod
    def state() -> dict:
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "step": 7}

    def test_what_dcp_saves_dcp_loads(self, tmp_path):
        import torch.distributed.checkpoint as dcp

        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        state = self.state()
        dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path), "j", 7), no_dist=True)
        checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
        assert checkpoints.verify(checkpoints.manifest(7)) == []
        blank = self.blank(state)
        dcp.load(blank, storage_reader=PulsetrainReader(str(tmp_path), "j"), no_dist=True)
        self.same(blank, state)

    @pytest.mark.parametrize("checkpoint_id", ["/checkpoints/9", "/checkpoints/step-9"])
    def test_the_checkpoint_id_says_the_step(self, tmp_path, checkpoint_id):
        import torch.distributed.checkpoint as dcp

        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        state = self.state()
        writer = PulsetrainWriter(str(tmp_path), "j", 0)
        dcp.save(state, checkpoint_id=checkpoint_id, storage_writer=writer, no_dist=True)
        assert Checkpoints(open_storage(str(tmp_path)), "j").steps() == [9]
        blank = self.blank(state)
        reader = PulsetrainReader(str(tmp_path), "j")
        dcp.load(blank, checkpoint_id=checkpoint_id, storage_reader=reader, no_dist=True)
        self.same(blank, state)

    def test_a_step_that_is_none_is_named(self, tmp_path):
        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        with pytest.raises(UsageError, match="step -1: allowed: 0 or more"):
            PulsetrainWriter(str(tmp_path), "j", -1)
        for one in (PulsetrainWriter(str(tmp_path), "j", 0), PulsetrainReader(str(tmp_path), "j")):
            with pytest.raises(UsageError, match="checkpoint /c/newest: allowed: a path that ends in 12"):
                one.reset("/c/newest")

    def test_what_a_checkpointer_saves_dcp_loads_and_converts(self, tmp_path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

        from pulsetrain.checkpoint.checkpointer import Checkpointer
        from pulsetrain.checkpoint.dcp import PulsetrainReader
        from pulsetrain.checkpoint.memory.arena import create_arena
        from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig

        torch.manual_seed(5)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        service = CheckpointService(
            CheckpointServiceConfig(storage=str(tmp_path), replicas=1), job="j", node="n", address="127.0.0.1"
        )
        fd = create_arena()
        service.attach(0, fd)
        saver = Checkpointer(
            {"model": model, "optimizer": optimizer}, environ={"PULSETRAIN_ARENA_FD": str(fd)}
        )
        saver.save(5, durable=True).wait_durable(10)
        saver.close()
        service.close()
        names = ("state.weight.exp_avg", "state.bias.exp_avg_sq")
        blank = {
            "model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()},
            "optimizer": {n: torch.zeros(3, 4) if "weight" in n else torch.zeros(3) for n in names},
        }
        dcp.load(blank, storage_reader=PulsetrainReader(str(tmp_path), "j", 5), no_dist=True)
        assert all(torch.equal(blank["model"][k], v) for k, v in model.state_dict().items())
        assert torch.equal(blank["optimizer"][names[0]], optimizer.state[model.weight]["exp_avg"])
        everything: dict = {}
        _load_state_dict(
            everything,
            storage_reader=PulsetrainReader(str(tmp_path), "j", 5),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
        assert torch.equal(everything["model.weight"], model.weight)

    def test_dcps_own_converter_reads_an_exported_step(self, tmp_path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        from pulsetrain.checkpoint.dcp import PulsetrainWriter, export_dcp

        state = self.state()
        dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path / "store"), "j", 7), no_dist=True)
        assert export_dcp(str(tmp_path / "store"), "j", tmp_path / "dcp") == 7
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "state.pt")
        found = torch.load(tmp_path / "state.pt", weights_only=False)
        for name, tensor in state["model"].items():
            assert torch.equal(found[f"model.{name}"], tensor)

    def test_a_missing_step_is_an_error(self, tmp_path):
        from pulsetrain.checkpoint.dcp import PulsetrainReader

        with pytest.raises(CheckpointError, match="step 3 is not committed"):
            PulsetrainReader(str(tmp_path), "j", 3).read_metadata()

    def test_a_step_that_is_saved_again_stays_until_the_new_one_is_whole(self, tmp_path):
        import torch.distributed.checkpoint as dcp

        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        class Killed(PulsetrainWriter):
            """Ends before the step exists."""

            def finish(self, metadata, results):
                pass

        def saved(value, writer=PulsetrainWriter):
            state = {"w": torch.full((3,), value)}
            dcp.save(state, storage_writer=writer(str(tmp_path), "j", 200), no_dist=True)
            found = {"w": torch.zeros(3)}
            dcp.load(found, storage_reader=PulsetrainReader(str(tmp_path), "j", 200), no_dist=True)
            return found["w"].tolist()

        assert saved(1.0) == [1.0] * 3
        assert saved(2.0, Killed) == [1.0] * 3
        assert saved(3.0) == [3.0] * 3
        [folder] = (tmp_path / "j").iterdir()
        assert len(list(folder.glob("*.pack"))) == len(list(folder.glob("*.table.json"))) == 1

    def test_ranks_of_a_group_are_counted_from_0_and_one_may_have_nothing_to_write(self, tmp_path):
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

        from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

        results = []
        for rank, state in ((3, {"a": torch.ones(2)}), (4, {}), (5, {"b": torch.ones(3)})):
            planner, writer = DefaultSavePlanner(), PulsetrainWriter(str(tmp_path), "j", 1)
            planner.set_up_planner(state, is_coordinator=True)
            plan = planner.create_local_plan()
            [plan], metadata = planner.create_global_plan([plan])
            writer._rank = rank  # as the default process group has it
            results.append(writer.write_data(planner.finish_plan(plan), planner).wait())
        writer.finish(metadata, results)
        checkpoints = Checkpoints(open_storage(str(tmp_path)), "j")
        assert checkpoints.verify(checkpoints.manifest(1)) == []
        assert set(PulsetrainReader(str(tmp_path), "j", 1).index.tensors) == {"a", "b"}

    def blank(self, value):
        if isinstance(value, torch.Tensor):
            return torch.zeros_like(value)
        if isinstance(value, dict):
            return {k: self.blank(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.blank(v) for v in value)
        return type(value)() if value is not None else None

    def same(self, a, b) -> None:
        if isinstance(b, torch.Tensor):
            assert torch.equal(a, b)
        elif isinstance(b, dict):
            assert a.keys() == b.keys()
            for key in b:
                self.same(a[key], b[key])
        else:
            assert a == b


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_step_of_dcp_is_newer_than_those_that_ranks_have_committed_and_replaces_none_of_them(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from pulsetrain.checkpoint.dcp import PulsetrainReader, PulsetrainWriter

    checkpoints = commit_arrays(tmp_path, {0: [("w", np.zeros(4, dtype=np.float32), (), ())]})
    agents = dataclasses.replace(checkpoints.manifest(1), attempt=2, edition=next_history(0))
    checkpoints.storage.put("j/step-000000000001/manifest.json", [agents.encode()])
    state = {"w": torch.ones(4)}
    dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path), "j", 2), no_dist=True)
    assert [m.step for m in checkpoints.committed()] == [2, 1]
    loaded = {"w": torch.zeros(4)}
    dcp.load(loaded, storage_reader=PulsetrainReader(str(tmp_path), "j"), no_dist=True)
    assert loaded["w"].tolist() == [1.0] * 4
    with pytest.raises(CheckpointException) as refused:
        dcp.save(state, storage_writer=PulsetrainWriter(str(tmp_path), "j", 1), no_dist=True)
    assert "saved by a Checkpointer and is not replaced" in str(refused.value.failures[0][0])
    assert checkpoints.manifest(1) == agents
