"""The commands over a real storage."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from pulsetrain.checkpoint import browse
from pulsetrain.checkpoint.memory.arena import create_arena
from pulsetrain.checkpoint.service import CheckpointService, CheckpointServiceConfig
from pulsetrain.cli import pulsetrain
from pulsetrain.core.errors import UsageError
from tests.checkpoint.trainers import arrays, save, wait_until


@pytest.fixture
def storage(tmp_path):
    return persisted(tmp_path, {step: model(step) for step in (1, 2)})


@pytest.fixture
def lending(tmp_path):
    """Three steps, the first of which is removed. Its tensor that never changes is part of the others."""
    return persisted(tmp_path, {step: model(step) for step in (1, 2, 3)}, keep_last=2)


def persisted(folder, steps, **config):
    """The folder, after the job has saved `steps` and each was committed."""
    config = CheckpointServiceConfig(storage=str(folder), persist_every=1, replicas=1, poll_s=0.005, **config)
    service = CheckpointService(config, job="pretrain", node="n", address="127.0.0.1")
    fd = create_arena()
    service.attach(0, fd)
    for step, tensors in steps.items():
        save(fd, 0, step, tensors=tensors)
        wait_until(lambda step=step: service._persister.newest and service._persister.newest[0].step == step)
    service.close()
    return folder


def model(step):
    return {f"model.{k}": v for k, v in arrays(0, step).items()}


def invoke(*arguments: object):
    return CliRunner().invoke(pulsetrain, [str(a) for a in arguments], standalone_mode=False)


def test_ls_shows_each_step_and_its_state(storage):
    (storage / "pretrain/step-000000000003").mkdir()
    (storage / "pretrain/step-000000000001/manifest.json").write_bytes(b"{}")
    rows = json.loads(invoke("checkpoint", "ls", "--storage", storage, "--json").output)
    assert [(r["step"], r["state"]) for r in rows] == [(3, "incomplete"), (2, "committed"), (1, "damaged")]
    assert rows[1]["world"] == 1
    text = invoke("checkpoint", "ls", "--storage", storage).output
    assert "committed" in text
    assert "unique_bytes" in text


def test_a_job_whose_name_is_a_path_is_found_by_it(storage):
    (storage / "team").mkdir()
    (storage / "pretrain").rename(storage / "team/exp")
    rows = json.loads(invoke("checkpoint", "ls", "--storage", storage, "--job", "team/exp", "--json").output)
    assert [r["step"] for r in rows] == [2, 1]
    with pytest.raises(UsageError, match="no checkpoints of job team/other"):
        browse.open_job(str(storage), "team/other")


def test_verify_finds_a_flipped_bit(storage):
    assert invoke("checkpoint", "verify", "--storage", storage).return_value == 0
    pack = next((storage / "pretrain/step-000000000002").glob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.write_bytes(data)
    result = invoke("checkpoint", "verify", "--storage", storage, "--step", 2, "--json")
    assert result.return_value == 1
    (row,) = json.loads(result.output)
    assert not row["ok"]
    assert "damaged" in row["wrong"][0]


def test_a_step_that_only_lends_packs_is_no_checkpoint_and_not_wrong(lending):
    rows = json.loads(invoke("checkpoint", "ls", "--storage", lending, "--json").output)
    assert [(r["step"], r["state"], r.get("kept_for")) for r in rows] == [
        (3, "committed", None),
        (2, "committed", None),
        (1, "kept", [2, 3]),
    ]
    result = invoke("checkpoint", "verify", "--storage", lending)
    assert result.return_value == 0
    assert "step 1: no checkpoint any more; its packs are kept for 2, 3" in result.output
    assert invoke("checkpoint", "verify", "--storage", lending, "--step", 1).return_value == 1


def test_a_step_that_is_being_written_is_wrong_only_where_it_is_asked_for(storage):
    (storage / "pretrain/step-000000000003").mkdir()
    result = invoke("checkpoint", "verify", "--storage", storage)
    assert result.return_value == 0
    assert "step 3: 0 files, no manifest.json" in result.output
    assert invoke("checkpoint", "verify", "--storage", storage, "--step", 3).return_value == 1


@pytest.mark.parametrize("step_read", [2, 1], ids=["before its turn", "while it is read"])
def test_a_step_that_retention_removes_meanwhile_is_not_wrong(tmp_path, step_read):
    steps = {step: {f"model.{name}": np.full(1000, step) for name in ("v", "w")} for step in (1, 2)}
    checkpoints = browse.open_job(str(persisted(tmp_path, steps)), None)
    newest_bytes = browse.steps_to_show(checkpoints)[0]["unique_bytes"]

    def report(done, total=None):
        if done > (0 if step_read == 2 else newest_bytes):
            checkpoints.retain(last=1, every=0)

    newest, oldest = browse.verdicts(checkpoints, None, report)
    assert newest["ok"]
    assert (oldest["state"], oldest["ok"], oldest["wrong"]) == ("removed", None, [])


def test_verify_reports_the_bytes_that_were_read_of_all(storage):
    seen = []
    checkpoints = browse.open_job(str(storage), None)
    assert all(
        row["ok"] for row in browse.verdicts(checkpoints, None, lambda done, total=None: seen.append(done))
    )
    assert seen == sorted(seen)
    assert seen[-1] == sum(row["unique_bytes"] for row in browse.steps_to_show(checkpoints))


def test_export_is_the_newest_step(storage, tmp_path):
    out = tmp_path / "hf"
    report = json.loads(invoke("checkpoint", "export", "--storage", storage, "-o", out, "--json").output)
    assert report["step"] == 2
    tensors = load_file(report["files"][0])
    assert {k: v.tolist() for k, v in tensors.items()} == {k: v.tolist() for k, v in arrays(0, 2).items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "--job", "other"), "no checkpoints of job other; jobs there: pretrain"),
        (("verify", "--step", 9), "no step 9; it has: 1, 2"),
        (("export", "--step", 9, "-o", "x"), "step 9 is not committed; committed: 2, 1"),
    ],
)
def test_unknown_jobs_and_steps_are_named(storage, arguments, message):
    result = invoke("checkpoint", *arguments, "--storage", storage)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_storage_without_checkpoints_is_told_as_such(tmp_path):
    result = invoke("checkpoint", "ls", "--storage", tmp_path)
    assert str(result.exception) == f"{tmp_path}: no checkpoints"


def test_of_several_jobs_one_must_be_named(tmp_path, monkeypatch):
    monkeypatch.setattr(browse, "jobs", lambda storage: ["gpt", "vit"])
    with pytest.raises(UsageError, match="has several jobs: give --job with one of gpt, vit"):
        browse.open_job(str(tmp_path), None)


def test_simulate_recovery_prints_both_ways():
    result = invoke("simulate", "recovery", "--set", "days=5", "--runs", 2, "--json")
    report = json.loads(result.output)
    simulated, expected = report["simulated"], report["closed_form"]
    assert simulated["effective_ratio"] == pytest.approx(expected["effective_ratio"], rel=0.05)
    assert isinstance(invoke("simulate", "recovery", "--set", "speed=1").exception, UsageError)
