"""A rank profiles the steps that its agent asks for, with the real profiler of torch."""

import gzip
import json

import pytest
import torch

from pulsetrain.collectors.rank.profile import VARIABLE, trace_path


@pytest.fixture
def prefix(tmp_path, monkeypatch):
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


def test_a_trace_that_cannot_be_written_is_told_and_training_goes_on(watched, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nonexistent/rank_0.profile")
    watched.reader.ask_for_profile(1, 0, 1)
    train(watched, 4)
    assert watched.reader.profiled == -1
