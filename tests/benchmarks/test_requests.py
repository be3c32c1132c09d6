"""Requests to stand: how one is made, and what rounds of them say together. Its ranks are no processes."""

import itertools
import random
from types import SimpleNamespace

import pytest
from moving import requests

from pulsetrain.elastic.barrier import Channel, Position


class FakeRank:
    """Stands as soon as it is asked, after the step that it is told to run on to."""

    def __init__(self, rank, *, restless=False):
        self.rank, self.restless, self.number, self.past = rank, restless, 0, 0
        self.reader = SimpleNamespace(status=lambda: SimpleNamespace(step=rank % 2, stack=()))

    def hold(self, number, past, until_ns, saved_step):
        self.number, self.past = number, past

    @property
    def stands(self):
        return bool(self.number) and not self.restless

    def position(self):
        return SimpleNamespace(
            stands=self.stands, arrivals=1, in_flight=0, complete=True, groups=(), pairs=()
        )


class FakeJob:
    """`drifts`: its ranks go on although they were asked to stand. `stuck`: they never do again."""

    def __init__(self, *, restless=False, drifts=False, stuck=False):
        self.ranks = [FakeRank(rank, restless=restless and rank == 3) for rank in range(8)]
        self.number, self.released, self.stuck = 0, 0, stuck
        self._steps = itertools.count() if drifts else itertools.repeat(4)
        self.lagging = Channel("tp", (0, 1))

    def last_steps(self):
        return [next(self._steps)] * 8

    def drain(self):
        pass

    def look(self, past):
        for rank in self.ranks:
            rank.past = past.get(rank.rank, 0)
        behind = {0: 5, 1: 4 + self.ranks[1].past}  # rank 1 has entered one operation less, until it runs on
        return {
            rank.rank: Position(
                stands=rank.stands,
                arrivals=rank.past + 1,
                entered={self.lagging: behind[rank.rank]} if rank.rank in behind else {},
            )
            for rank in self.ranks
        }

    def let_go(self):
        self.released += 1

    def reach(self, step):
        assert not self.stuck, "stands at step 4"


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(requests, "LIMIT_S", 0.2)
    monkeypatch.setattr(requests, "LIMIT_STEPS", 1)
    monkeypatch.setattr(requests, "STILL_S", 0.0)


def ask(job, step_s=0.02):
    return requests.ask(job, random.Random(1), step_s)


def test_a_rank_that_others_wait_for_runs_on_until_all_stand():
    job = FakeJob()
    made = ask(job)
    assert (made.acquired, made.steps, made.places, made.why_not, made.wrong) == (True, 2, 2, "", "")
    assert job.released == 1


def test_a_request_that_is_given_up_says_what_it_waited_for():
    made = ask(FakeJob(restless=True))
    assert not made.acquired
    assert made.why_not == "rank 3 came to no end of a step"
    assert made.wrong == ""


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"drifts": True}, "a rank went on while all stood"),
        ({"stuck": True}, "the job did not go on: stands at step 4"),
    ],
)
def test_what_must_not_happen_is_told(job, words):
    assert ask(FakeJob(**job)).wrong.startswith(words)


def test_rounds_that_are_kept_are_not_run_again(tmp_path, monkeypatch):
    trained = []

    def train(folder, steps, count, generator):
        trained.append(count)
        return [
            requests.Request(acquired=True, steps=1, places=3, took_s=0.5) for _ in range(count)
        ], "digest"

    monkeypatch.setattr(requests, "train", train)
    kept = tmp_path / "rows.jsonl"
    found = requests.run(quick=False, seed=1, points=40, resume=kept)
    assert trained == [0, 20, 20]
    assert (found["hold_requests"], found["hold_acquired"], found["hold_identical"]) == (40, 40, 2)
    more = requests.run(quick=False, seed=1, points=60, resume=kept)
    assert trained == [0, 20, 20, 20]
    assert (more["hold_rounds"], more["hold_steps"], more["hold_places"]) == (3, {"1": 60}, {"3": 60})


def test_the_report_counts_what_was_given_up_and_what_was_wrong():
    made = [
        requests.Request(acquired=True, steps=2, took_s=0.2),
        requests.Request(why_not="rank 3 came to no end of a step"),
        requests.Request(acquired=True, steps=1, took_s=0.4, wrong="a rank went on while all stood"),
    ]
    row = {"requests": [vars(request) for request in made], "identical": False, "load": 3.0}
    found = requests.report([row])
    assert (found["hold_requests"], found["hold_acquired"], found["hold_steps_worst"]) == (3, 2, 2)
    assert found["hold_given_up"] == ["rank 3 came to no end of a step"]
    assert found["hold_wrong"] == ["a rank went on while all stood"]
    assert (found["hold_took_s"], found["hold_identical"]) == (0.3, 0)
