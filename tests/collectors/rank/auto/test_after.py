from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pulsetrain.collectors.rank.auto.after import call_after


class Engine:
    def start(self, speed: int) -> int:
        if speed < 0:
            raise ValueError("the script's own bug")
        return speed * 2


@pytest.fixture
def engine():
    return type("Engine", (Engine,), {})


def test_the_call_is_as_before_and_ours_comes_after_with_its_result(engine):
    seen = []
    call_after(engine, "start", lambda *args, **kwargs: seen.append((args[0], args[2:], kwargs)), seen.clear)
    assert (engine().start(2), engine().start(speed=3)) == (4, 6)
    assert seen == [(4, (2,), {}), (6, (), {"speed": 3})]


def test_our_fault_is_counted_and_the_scripts_is_its_own(engine):
    faults = []
    call_after(engine, "start", lambda *_: 1 / 0, lambda: faults.append(1))
    assert engine().start(2) == 4
    assert faults == [1]
    with pytest.raises(ValueError, match="own bug"):
        engine().start(-1)
    assert faults == [1]


def test_a_name_that_is_not_there_is_said(engine):
    with pytest.raises(AttributeError):
        call_after(engine, "stop", print, print)


def test_ours_comes_after_in_a_compiled_function_that_has_a_graph_break_too():
    def work(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    library, seen = SimpleNamespace(work=work), []
    call_after(library, "work", lambda result, *_: seen.append(float(result)), seen.clear)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return library.work(x) * 2

    assert [float(step(torch.tensor(n))) for n in (1.0, 2.0, 3.0)] == [4.0, 6.0, 8.0]
    assert seen == [2.0, 3.0, 4.0]
