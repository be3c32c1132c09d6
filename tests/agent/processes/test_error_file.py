"""What torch's `record` writes of a failure, and whether ranks are told what torchrun tells them."""

import json
import os
import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.errors import record

from pulsetrain.agent.launch import node_environment
from pulsetrain.agent.launch_options import LaunchOptions, NodeOptions
from pulsetrain.agent.processes.error_file import VARIABLE, error_lines
from pulsetrain.agent.processes.rank import Program
from tests.agent.processes.test_ranks import ARENAS, IDENTITY, START, Zygote
from tests.agent.processes.test_ranks import node as node


@record
def train():
    raise ValueError("boom")


def test_what_torch_records_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "error.json"))
    with pytest.raises(ValueError, match="boom"):
        train()
    lines = error_lines(tmp_path / "error.json", 3)
    assert len(lines) == 3
    assert lines[-1] == "ValueError: boom"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (json.dumps({"message": "a\n\nb"}), ("a", "b")),
        (json.dumps({"message": {"message": "a", "extraInfo": None}}), ("a",)),
        (json.dumps({"message": None}), ()),
        (json.dumps(["message"]), ()),
        ("{", ()),
        ("", ()),
    ],
)
def test_other_forms_and_broken_files_end_no_report(tmp_path, text, lines):
    (tmp_path / "error.json").write_text(text)
    assert error_lines(tmp_path / "error.json", 3) == lines
    assert error_lines(tmp_path / "none.json", 3) == ()


def test_a_rank_that_printed_nothing_is_reported_with_what_it_recorded(node):
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    with open(zygote.spawned[1].env[VARIABLE], "w") as file:
        json.dump({"message": "ValueError: boom"}, file)
    zygote.exits[1](1)
    assert node.all[1].report(IDENTITY, 17).last_lines == ("ValueError: boom",)
    node.all[1].err.write_text("printed\n")
    assert node.all[1].report(IDENTITY, 17).last_lines == ("printed",)
    node.spawn(Zygote(), START, ARENAS)
    assert not node.all[1].error_file.exists(), "what an attempt before wrote is not the next one's"


@pytest.mark.integration
def test_ranks_are_told_all_that_torchrun_tells_them(node):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "PULSETRAIN", "OMP"))}
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--no-python",
        "env",
        "-0",
    ]
    done = subprocess.run([sys.executable, *torchrun], env=plain, capture_output=True, text=True, timeout=60)
    told = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    zygote = Zygote()
    node.spawn(zygote, START, ARENAS)
    options = LaunchOptions(
        program=Program(argv=("train.py",)), node=NodeOptions(nproc_per_node=2), environ=plain
    )
    ours = node_environment(options) | zygote.spawned[0].env
    assert told.keys() - plain.keys() <= ours.keys()
    for name in ("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"):
        assert ours[name] == told[name]
