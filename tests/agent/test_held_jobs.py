"""Jobs of real processes are brought to a stand again and again. They end as if nobody had touched them."""

import pytest
import torch

from tests.agent.held_job import REPOSITORY, HeldJob, disturb

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

DDP = (REPOSITORY / "benchmarks/jobs/ddp.py", "--width", "32", "--layers", "1")
GPT = (REPOSITORY / "examples/train_gpt.py", "--layers", "2", "--dim", "32", "--batch", "8", "--seq", "16")


def run(folder, world, *command, times=0, seed=0, steps):
    job = HeldJob(folder, world, *command, "--steps", steps)
    try:
        took = disturb(job, times, seed, steps) if times else []
        job.wait()
    finally:
        job.close()
    assert [rank.reader.status().errors for rank in job.ranks] == [0] * world
    assert [rank.reader.position().ran_on for rank in job.ranks] == [0] * world
    return took


def test_a_script_without_a_line_of_ours_stops_within_two_steps_and_ends_the_same(tmp_path):
    steps, ends = 150, {}
    for name, times in (("undisturbed", 0), ("held", 12)):
        out = tmp_path / name
        took = run(out, 2, *DDP, "--out", out, "--save-every", steps, times=times, steps=steps)
        ends[name] = torch.load(out / "ckpt.pt")["model"]
    assert max(took) <= 2
    for name, tensor in ends["undisturbed"].items():
        assert torch.equal(tensor, ends["held"][name]), name


def test_three_dimensions_of_parallelism_stop_within_two_steps_and_end_the_same(tmp_path):
    steps, ends = 45, []
    for name, times in (("undisturbed", 0), ("held", 6)):
        out = tmp_path / f"{name}.hash"
        took = run(tmp_path / name, 8, *GPT, "--params-hash-out", out, times=times, seed=1, steps=steps)
        ends.append(out.read_text())
    assert max(took) <= 2
    assert ends[0] == ends[1]
