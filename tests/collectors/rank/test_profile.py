"""A rank profiles the steps that its agent asks for, with the real profiler of torch."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from pulsetrain.collectors.rank.profile import VARIABLE, trace_path


@pytest.fixture
def prefix(tmp_path, monkeypatch, watched):
    from torch.autograd import profiler as module

    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    watched.handle.profiler.watch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "rank_0.profile"))
    return str(tmp_path / "rank_0.profile")


def train(watched, steps):
    for _ in range(steps):
        torch.ones(8, 8) @ torch.ones(8, 8)
        watched.handle.step()


def products(prefix, number):
    """How many matrix products are in a trace."""
    with gzip.open(trace_path(prefix, number)) as file:
        events = json.load(file)["traceEvents"]
    return sum(event.get("name") == "aten::matmul" for event in events)


def test_exactly_the_steps_that_were_asked_for_are_in_the_trace(watched, prefix):
    train(watched, 2)
    watched.reader.ask_for_profile(1, 4, 3)
    train(watched, 4)
    assert watched.reader.profiled == 0
    train(watched, 5)
    assert watched.reader.profiled == 1
    assert products(prefix, 1) == 3
    assert watched.reader.status().errors == 0


def test_each_profile_is_made_once(watched, prefix):
    for number in (1, 2):
        watched.reader.ask_for_profile(number, 0, 1)
        train(watched, 4)
        assert watched.reader.profiled == number
        assert products(prefix, number) == 1


def test_a_profile_that_is_called_off_ends_without_a_trace(watched, prefix):
    watched.reader.ask_for_profile(1, 0, 100)
    train(watched, 3)
    assert torch.autograd._profiler_enabled()
    watched.reader.call_off_profile()
    train(watched, 1)
    assert watched.reader.profiled == -1
    assert not torch.autograd._profiler_enabled()
    watched.reader.ask_for_profile(2, 1000, 1)
    watched.reader.call_off_profile()
    train(watched, 1)
    assert watched.reader.profiled == -2
    assert not list(Path(prefix).parent.iterdir())


def test_a_new_profile_has_none_of_the_steps_of_one_that_still_runs(watched, prefix):
    watched.reader.ask_for_profile(1, 0, 5)
    train(watched, 4)
    watched.reader.ask_for_profile(2, 10, 2)
    train(watched, 4)
    assert watched.reader.profiled == 0
    assert not list(Path(prefix).parent.iterdir())
    train(watched, 8)
    assert watched.reader.profiled == 2
    assert products(prefix, 2) == 2


def own_profiler():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def own_products(profiler):
    return sum(event.count for event in profiler.key_averages() if event.key == "aten::matmul")


def test_a_script_that_profiles_itself_keeps_its_profile_and_the_agent_is_told(watched, prefix):
    with own_profiler() as own:
        watched.reader.ask_for_profile(1, 0, 1)
        train(watched, 4)
    assert watched.reader.profiled == -1
    assert own_products(own) == 4
    watched.reader.ask_for_profile(2, 0, 1)
    train(watched, 4)
    assert watched.reader.profiled == 2


def test_a_script_that_begins_to_profile_itself_meanwhile_keeps_its_profile_too(watched, prefix):
    watched.reader.ask_for_profile(1, 0, 10)
    train(watched, 2)
    with own_profiler() as own:
        train(watched, 4)
        assert watched.reader.profiled == -1
    assert own_products(own) == 4
    with own_profiler() as again:
        train(watched, 20)
    assert own_products(again) == 20
    assert watched.reader.status().errors == 0


@pytest.mark.parametrize("asked_at", range(8))
def test_a_script_that_profiles_by_a_schedule_keeps_its_profile(watched, prefix, asked_at):
    schedule = torch.profiler.schedule(wait=2, warmup=2, active=3, repeat=1)
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)
    with own:
        for step in range(12):
            if step == asked_at:
                watched.reader.ask_for_profile(1, 0, 2)
            train(watched, 1)
            own.step()
    assert own_products(own) == 3
    assert abs(watched.reader.profiled) == 1


def test_a_script_that_marks_ranges_for_another_tool_trains_on(watched, prefix):
    watched.reader.ask_for_profile(1, 0, 10)
    train(watched, 2)
    with torch.autograd.profiler.emit_itt(enabled=True):
        train(watched, 3)
    assert watched.reader.profiled == -1


def test_a_process_whose_profilers_are_not_watched_is_left_alone(watched, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "rank_0.profile"))
    watched.reader.ask_for_profile(1, 0, 1)
    train(watched, 3)
    assert watched.reader.profiled == -1


def test_a_trace_that_cannot_be_written_is_told_and_training_goes_on(watched, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nonexistent/rank_0.profile")
    watched.reader.ask_for_profile(1, 0, 1)
    train(watched, 4)
    assert watched.reader.profiled == -1
