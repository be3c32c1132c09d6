"""The example of a sharded job that may shrink and grow."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pulsetrain.elastic import ElasticSampler
from tests.repository import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt_elastic", EXAMPLES / "train_gpt_elastic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


def test_replicas_follow_from_the_number_of_ranks_and_the_batch_stays(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train", "--tp", "2", "--pp", "2", "--batch", "16", "--rows", "4"])
    found = {}
    for ranks in (8, 4):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        args = example.arguments()
        found[ranks] = (args.dp, args.microbatches, args.steps)
    assert found == {8: (2, 2, 256), 4: (1, 4, 256)}


def test_a_data_set_that_does_not_divide_is_refused_in_one_line(example, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "--samples", "17"])
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit):
        example.arguments()
    assert "--samples 17: must be a multiple of --batch 16" in capsys.readouterr().err


def test_two_replicas_together_see_what_one_sees(example):
    text = torch.arange(4096).to(torch.uint8)

    def rows(rank: int, world: int) -> list[list[int]]:
        share = next(iter(ElasticSampler(64, batch=8, rank=rank, world=world)))
        return example.sequences(text, share, 16)[0].tolist()

    assert sorted(rows(0, 2) + rows(1, 2)) == sorted(rows(0, 1))


def test_what_it_records_is_one_line_for_each_step(example, tmp_path: Path):
    record = example.Record(tmp_path / "ids")
    record.note(step=1, ids=[3])
    record.note(step=2, ids=[4])
    [file] = (tmp_path / "ids").iterdir()
    assert file.read_text() == '{"step": 1, "ids": [3]}\n{"step": 2, "ids": [4]}\n'
    example.Record(None).note(step=1)
