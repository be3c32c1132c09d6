"""What the benchmark of NaNs, wrong products and slow clocks draws and counts."""

import random

import pytest
from machinecheck import injected
from machinecheck.injected import KINDS, Run


def test_kinds_come_about_equally_often_and_a_seed_repeats_them():
    drawn = injected.kinds_of(50, random.Random(3))
    assert drawn == injected.kinds_of(50, random.Random(3)) != injected.kinds_of(50, random.Random(4))
    assert sorted(drawn.count(kind) for kind in KINDS) == [12, 12, 13, 13]


def test_what_was_not_found_and_who_was_accused_is_counted():
    runs = [
        Run(number=0, kind="nan", node="a", found=True),
        Run(number=1, kind="gemm", node="a"),
        Run(number=2, kind="clean", node="b", found=True, wrong=["evict c: why", "nan 2"]),
    ]
    told = injected.summary(runs)
    assert (told["runs"], told["healthy_evicted"], told["runs_that_accuse_wrongly"]) == (3, 1, 1)
    assert told["by_kind"]["gemm"] == {"runs": 1, "found": 0, "wrong": 0}
    assert [row["number"] for row in told["odd"]] == [1, 2]


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_nan_and_wrong_products_of_a_real_job_are_told_apart(monkeypatch):
    monkeypatch.setattr(injected, "kinds_of", lambda runs, draw: ["nan", "gemm"])
    told = injected.run(2, seed=5)
    assert (told["runs"], told["odd"]) == (2, [])


def test_runs_that_a_file_has_are_not_played_again(tmp_path):
    file, kinds = tmp_path / "runs", ["nan", "gemm", "clean"]
    assert injected.earlier(file, kinds, 5) == []
    kept = [
        Run(number=1, kind="gemm", node="a", found=True),
        Run(number=0, kind="nan", node="b", wrong=["x"]),
    ]
    for run in kept:
        injected.keep(run, 5, file)
    injected.keep(Run(number=2, kind="clean", node="c"), 6, file)
    injected.keep(Run(number=2, kind="clean", node="", note="the job was not ready"), 5, file)
    assert injected.earlier(file, kinds, 5) == [kept[1], kept[0]]
    with pytest.raises(ValueError, match="run 0 is of another set; give the same number of runs"):
        injected.earlier(file, ["clean", "gemm", "nan"], 5)


def test_a_start_with_all_runs_in_its_file_starts_no_process(tmp_path):
    file, kinds = tmp_path / "runs", injected.kinds_of(4, random.Random(5))
    for number, kind in enumerate(kinds):
        injected.keep(
            Run(number=number, kind=kind, node="a", found=None if kind == "clean" else True), 5, file
        )
    assert injected.run(4, seed=5, resume=file)["odd"] == []
