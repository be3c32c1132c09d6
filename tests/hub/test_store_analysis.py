"""From what the store says to findings: which jobs are asked about, how often, and what is believed."""

import asyncio

import pytest

from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive, is_held
from pulsetrain.hub.storage_lag import LIMIT_S
from pulsetrain.hub.store_analysis import (
    AGAIN_S,
    CONSIDER_S,
    CONSIDER_SHARE,
    FAILING_S,
    PERIODS_S,
    POLL_S,
    TURN_S,
    StoreAnalysis,
)
from pulsetrain.hub.watch_pace import WatchPace
from pulsetrain.recovery.transitions import Phase
from tests.hub.fakes import Clock, FakeJob, Sink, finding
from tests.recovery.builders import S, node_snapshot, status

STACKS = Inconclusive(analyzer="stacks", reason="not tried yet in this attempt")


class Records:
    """A store that answers what a test says; `took_s` passes with each question about steps."""

    def __init__(self, clock):
        self.clock, self.took_s = clock, 0.0
        self.ranks, self.steps = [Healthy(analyzer="straggler")], [Healthy(analyzer="mfu")]
        self.machines = [Healthy(analyzer="network")]
        self.newest, self.asked, self.stored, self.hurries, self.fails = 5, [], 0, 0, None

    def look(self, job, attempt, now_ns, groups):
        self.asked.append(list(groups))
        self.clock.now_s += self.took_s
        if self.fails in groups:
            raise OSError("no answer")
        return {group: getattr(self, group) for group in groups}

    def newest_step(self, job, attempt):
        return self.newest

    def arrivals(self):
        return self.stored

    def hurry(self):
        self.hurries += 1


class Site:
    def __init__(self, **changes):
        self.clock, self.sink, self.job = Clock(), Sink(), FakeJob(**changes)
        self.records = Records(self.clock)
        self.jobs = {"j": self.job}
        self.pace = WatchPace(self.clock)
        self.analysis = StoreAnalysis(
            self.jobs, self.records, self.sink, self.clock, lambda job: STACKS, self.pace
        )

    def turn(self, after_s=0.0):
        self.clock.now_s += after_s
        self.analysis.consider()
        return asyncio.run(self.analysis.look_round())


@pytest.mark.parametrize("change", [{"phase": Phase.STARTING}, {"first_step_done": False}])
def test_only_a_job_that_trains_is_asked_about(change):
    site = Site(**change)
    site.turn()
    assert site.records.asked == []


STARTS = {
    "first_step_done": False,
    "started_ns": 989 * S,
    "nodes": tuple(
        node_snapshot(name, *(status(rank, last_step=-1) for rank in ranks))
        for name, ranks in (("a", (0, 1)), ("b", (2, 3)))
    ),
}
"""A job of which all ranks work, and none has named a step, 11 s after its launch."""


def test_who_is_slow_is_asked_of_a_job_that_names_no_steps_before_it_counts_as_training():
    site = Site(**STARTS)
    site.records.ranks = [finding("straggler", confidence=0.95)]
    for _ in range(8):
        site.turn(after_s=TURN_S)
    assert site.records.asked == [["ranks"]] * 8
    assert [f.kind for f in site.sink.new] == ["straggler"]
    assert not site.pace.calm
    site.job.changes = {}  # a step at last: rounds say no more
    site.records.ranks = [Healthy(analyzer="straggler")]
    for _ in range(6):
        site.turn(after_s=TURN_S)
    assert site.sink.still_open["j", "stored"] == []
    assert ["machines"] in site.records.asked


@pytest.mark.parametrize(
    "change",
    [
        {"phase": Phase.CHECKING},
        {"started_ns": 991 * S},
        {"nodes": STARTS["nodes"][:1]},
        *(
            {"nodes": (STARTS["nodes"][0], node_snapshot("b", status(2, last_step=-1), status(3, **rank)))}
            for rank in ({"last_step": 0}, {"last_step": -1, "progress": 0})
        ),
        {
            "nodes": (
                STARTS["nodes"][0],
                node_snapshot("b", *(status(r, last_step=-1, progress_age_ns=6 * S) for r in (2, 3))),
            )
        },
    ],
)
def test_a_starting_job_is_not_asked_about_unless_all_its_ranks_work_and_name_no_step(change):
    site = Site(**(STARTS | change))
    site.turn()
    assert site.records.asked == []


def test_what_was_said_of_a_start_ends_where_its_ranks_are_looked_at_no_more():
    site = Site(**STARTS)
    site.records.ranks = [finding("straggler", "3", severity="warning", confidence=0.99)]
    site.turn()
    assert site.sink.still_open["j", "stored"]
    busy = status(0, last_step=-1, progress_age_ns=9 * S)
    site.job.changes["nodes"] = (node_snapshot("a", busy, status(1, last_step=-1)), STARTS["nodes"][1])
    for _ in range(20):
        site.turn(1.0)
    assert site.sink.still_open["j", "stored"] == []


def test_each_group_is_asked_in_its_period_one_beside_who_is_slow_and_what_it_said_stays():
    site = Site()
    site.turn()
    for _ in range(6):
        site.turn(after_s=TURN_S)
    turns = [["ranks", "steps"], ["ranks", "machines"], ["ranks"], ["ranks"], ["ranks", "steps"], ["ranks"]]
    turns += [["ranks", "machines"]]
    assert site.records.asked == [[group] for turn in turns for group in turn]
    said = [v.analyzer for v in site.sink.detected["j"]]
    assert said == ["straggler", "mfu", "no_data", "stacks", "network"]


def test_rows_are_asked_for_soon_where_a_job_changes_and_not_while_it_simply_trains():
    site, hurries = Site(phase=Phase.STARTING), []
    for phase in (Phase.STARTING, Phase.RUNNING, Phase.RUNNING, Phase.FINISHED, Phase.FINISHED):
        site.job.changes = {"phase": phase}
        before = site.records.hurries
        site.turn(after_s=TURN_S)
        hurries.append(site.records.hurries - before)
    assert hurries == [1, 1, 0, 1, 0]


def test_rows_are_asked_for_soon_while_something_doubtful_waits_in_a_job_that_trains():
    site = Site()
    site.turn()
    site.records.ranks = [finding("straggler", confidence=0.5)]
    before = site.records.hurries
    assert site.turn(after_s=TURN_S) < TURN_S
    assert site.records.hurries == before + 1
    site.job.changes = {"phase": Phase.FINISHED}
    assert site.turn(after_s=TURN_S) == TURN_S


def test_who_is_slow_is_reported_before_the_others_are_asked():
    site, reported = Site(), []
    site.records.ranks = [finding("straggler", confidence=0.95)]
    original = site.records.look

    def look(*args):
        reported.append(len(site.sink.new))
        return original(*args)

    site.records.look = look
    site.turn()
    assert reported == [0, 1]


def test_a_sure_finding_is_reported_at_once_and_once():
    site = Site()
    site.records.ranks = [finding("straggler", confidence=0.95)]
    assert site.turn() == TURN_S
    site.turn(after_s=TURN_S)
    assert [f.kind for f in site.sink.new] == ["straggler"]
    assert [f.kind for f in site.sink.still_open["j", "stored"]] == ["straggler"]


def test_an_unsure_finding_is_looked_at_again_soon():
    site = Site()
    site.turn()
    site.turn(after_s=TURN_S)
    site.records.steps = [finding("mfu_decay", confidence=0.6)]
    assert site.turn(after_s=PERIODS_S["steps"]) == AGAIN_S
    assert site.sink.new == []
    assert site.turn() == TURN_S  # steps are asked again before their four seconds are over
    assert [f.kind for f in site.sink.new] == ["mfu_decay"]


def test_who_is_slow_takes_a_fifth_of_the_time_and_each_other_group_a_twentieth():
    site = Site()
    site.records.took_s = 4.0
    assert site.turn() == 20.0 - 8.0
    site.turn(after_s=12.0)
    assert site.records.asked == [["ranks"], ["steps"], ["ranks"], ["machines"]]
    site.records.took_s = 0.1
    for _ in range(100):
        site.turn(after_s=TURN_S)
    again = site.records.asked[4:].index(["steps"])
    assert site.records.asked[4 : 4 + again] == [["ranks"]] * again
    assert 50 < again < 80


def test_a_look_waits_for_new_rows_but_not_for_long():
    site = Site()
    site.records.stored = 1
    assert site.turn() == TURN_S
    assert site.turn(after_s=TURN_S) == POLL_S
    assert site.records.asked.count(["ranks"]) == 1
    site.records.stored = 2
    assert site.turn(after_s=POLL_S) == TURN_S
    assert site.records.asked.count(["ranks"]) == 2
    site.turn(after_s=2 * TURN_S)
    assert site.records.asked.count(["ranks"]) == 3


def test_steps_that_are_not_stored_are_a_finding():
    site = Site(nodes=(node_snapshot("a", status(0, last_step=90)),))
    site.turn()
    site.turn(after_s=LIMIT_S + 1)
    assert [f.kind for f in site.sink.new] == ["no_data"]


def test_nobody_is_said_to_be_healthy_of_ranks_that_were_left_behind():
    site = Site(nodes=(node_snapshot("a", status(0, last_step=900), status(1, last_step=900)),))
    site.records.ranks, answers = [Healthy(analyzer="straggler", numbers={"ranks": 2})], []
    for _ in range(30):
        site.turn(after_s=TURN_S)
        answers.append(site.sink.detected["j"][0])
    assert isinstance(answers[0], Healthy)
    assert isinstance(answers[-1], Inconclusive)
    assert "2 of 4" in answers[-1].reason
    reasons = {
        v.analyzer: getattr(v, "reason", "") for v in site.sink.detected["j"] if hasattr(v, "analyzer")
    }
    assert reasons["mfu"] == reasons["straggler"]
    assert reasons["network"] == ""


def test_what_was_found_in_an_attempt_that_is_over_is_not_reported():
    site = Site()
    original = site.records.look

    def look(*args):
        site.job.changes["attempt"] = 1
        return original(*args)

    site.records.look = look
    site.records.ranks = [finding("straggler")]
    site.turn()
    assert (site.sink.new, site.sink.detected) == ([], {})


def test_one_job_whose_analysis_raises_does_not_blind_the_others():
    site = Site()
    site.jobs["broken"] = FakeJob(broken=RuntimeError("no snapshot"))
    with pytest.raises(RuntimeError) as raised:
        site.turn()
    assert raised.value.__notes__ == ["job broken"]
    assert "j" in site.sink.detected


def test_a_group_that_cannot_be_asked_keeps_no_other_from_it_and_is_asked_no_more_often():
    site, failures = Site(), []
    site.records.fails, site.records.took_s = "ranks", 0.5
    began_s = site.clock.now_s
    while site.clock.now_s < began_s + 60.0:
        try:
            wait_s = asyncio.run(site.analysis.turn())
        except OSError as error:
            failures += error.__notes__
            wait_s = 0.5  # as the supervisor waits
        site.clock.now_s += max(0.01, wait_s)
    assert set(failures) == {"ranks of job j"}
    assert 20 <= len(failures) <= 24  # a fifth of a minute, each takes half a second
    assert {v.analyzer for v in site.sink.detected["j"]} >= {"mfu", "network"}


def test_what_was_healthy_before_is_not_told_for_ever_of_a_group_that_cannot_be_asked():
    site = Site()
    site.turn()
    site.records.fails = "ranks"
    told = []
    for after_s in (TURN_S, FAILING_S):
        with pytest.raises(OSError, match="no answer"):
            site.turn(after_s=after_s)
        told.append({v.analyzer: type(v).__name__ for v in site.sink.detected["j"]})
    assert told[0]["straggler"] == "Healthy"  # perhaps it was one question alone
    assert "straggler" not in told[1]
    assert told[1]["analysis of ranks"] == "Failed"
    site.records.fails = None
    site.turn(after_s=TURN_S)
    well = {v.analyzer: type(v).__name__ for v in site.sink.detected["j"]}
    assert (well["straggler"], well["analysis of ranks"]) == ("Healthy", "Healthy")


def test_a_new_attempt_ends_the_failure_of_the_analysis_before_its_first_step():
    site = Site()
    site.turn()
    site.records.fails = "ranks"
    for after_s in (TURN_S, FAILING_S):
        with pytest.raises(OSError, match="no answer"):
            site.turn(after_s=after_s)
    site.job.changes |= {"attempt": 1, "phase": Phase.STARTING, "first_step_done": False}
    site.turn(after_s=TURN_S)
    assert site.sink.detected["j"] == [Healthy(analyzer="analysis of ranks")]


def test_what_was_found_stays_open_while_the_store_cannot_be_asked():
    site = Site()
    site.records.ranks = [finding("straggler", confidence=0.95)]
    site.turn()
    site.records.fails = "ranks"
    for after_s in (TURN_S, FAILING_S):
        with pytest.raises(OSError, match="no answer"):
            site.turn(after_s=after_s)
    assert [f.kind for f in site.sink.still_open["j", "stored"]] == ["straggler"]


def test_nobody_waits_for_a_group_that_fails_to_say_again_what_was_doubtful():
    site = Site()
    site.records.ranks = [finding("straggler", confidence=0.5)]
    site.turn()
    site.records.fails = "ranks"
    with pytest.raises(OSError, match="no answer"):
        site.turn(after_s=AGAIN_S)
    asked = len(site.records.asked)
    assert site.turn(after_s=AGAIN_S) == TURN_S
    assert len(site.records.asked) == asked


def test_the_same_rows_again_confirm_nothing_and_end_nothing():
    site = Site()
    site.records.ranks = [finding("straggler", confidence=0.6)]
    assert site.turn() == AGAIN_S
    site.records.ranks = None  # nothing new was stored
    for _ in range(4):
        assert site.turn(after_s=AGAIN_S) == AGAIN_S
    assert site.sink.new == []
    assert [v.kind for v in site.sink.detected["j"] if hasattr(v, "kind")] == ["straggler"]
    site.records.ranks = [finding("straggler", confidence=0.6)]
    site.turn()
    assert [f.kind for f in site.sink.new] == ["straggler"]


UNSURE = [
    Inconclusive(analyzer="straggler", reason="too few steps"),
    Failed(analyzer="straggler", error="OSError: no answer"),
]


@pytest.mark.parametrize("unsure", UNSURE)
def test_a_finding_is_not_over_where_its_analyzer_cannot_tell_any_more(unsure):
    """It stays for as long as it was seen before, and says that it is not known."""
    site = Site()

    def pass_by(seconds, said):
        site.records.ranks = said
        for _ in range(seconds):
            site.turn(after_s=TURN_S)
        return site.sink.still_open["j", "stored"]

    assert pass_by(61, [finding("straggler")]) == [finding("straggler")]
    (held,) = pass_by(60, [unsure])
    assert is_held(held)
    assert held.summary.startswith("straggler at rank 3; whether it goes on is not known now: ")
    assert pass_by(4, [unsure]) == []
    assert pass_by(61, [finding("straggler")]) == [finding("straggler")]
    assert pass_by(30, [unsure])
    assert pass_by(1, [finding("straggler")]) == [finding("straggler")]
    assert pass_by(3, [Healthy(analyzer="straggler")]) == []


def test_a_finding_by_chance_ends_soon_where_its_analyzer_cannot_tell():
    site = Site()
    site.records.ranks = [finding("straggler")]
    site.turn()
    site.records.ranks = UNSURE[:1]
    for _ in range(3):
        site.turn(after_s=TURN_S)
    assert site.sink.still_open["j", "stored"] == []


def test_another_finding_of_the_same_analyzer_ends_what_it_found_before():
    site = Site()
    for subject in ("3", "5"):
        site.records.ranks = [finding("straggler", subject), *UNSURE[:1]]
        for _ in range(10):
            site.turn(after_s=TURN_S)
    assert [f.subject for f in site.sink.still_open["j", "stored"]] == ["5"]


def test_what_steps_show_is_not_confirmed_by_a_look_at_ranks():
    site = Site()
    site.records.steps = [finding("fail_slow", confidence=0.6)]
    site.turn()
    site.records.steps = None
    site.turn(after_s=TURN_S)
    site.turn(after_s=TURN_S)
    assert (site.sink.new, site.records.asked[-1]) == ([], ["steps"])
    site.records.steps = []
    site.turn(after_s=PERIODS_S["steps"])
    assert site.sink.new == []


def train(site, seconds, step_s=0.1, began_step=0):
    """Heartbeats tell of more steps each second, and the hub looks as often as it wants to."""
    for second in range(seconds):
        step = began_step + int((second + 1) / step_s)
        site.job.changes = {"nodes": (node_snapshot("a", status(0, last_step=step)),)}
        site.records.newest = step
        site.clock.now_s += 1.0
        asyncio.run(site.analysis.turn())
    return began_step + int(seconds / step_s)


def test_a_steady_job_is_looked_at_seldom_and_promptly_again_when_its_steps_become_longer():
    site = Site()
    site.records.took_s = 0.03
    step = train(site, 120)
    assert site.pace.calm
    before = len(site.records.asked)
    step = train(site, 30, began_step=step)
    assert len(site.records.asked) - before < 14
    train(site, 4, step_s=0.15, began_step=step)
    assert not site.pace.calm


def test_a_job_that_names_no_steps_is_steady_where_nothing_is_doubtful():
    nameless = {"nodes": (node_snapshot("a", status(0, last_step=-1)),)}
    site, calm = Site(**nameless), []
    site.records.took_s = 0.03
    for second in range(150):
        site.records.ranks = [finding("straggler", confidence=0.5)] if second >= 140 else []
        site.clock.now_s += 1.0
        asyncio.run(site.analysis.turn())
        calm.append(site.pace.calm)
    assert calm[20:25] == [False] * 5  # it is young
    assert calm[100:140] == [True] * 40
    assert not calm[-1]


def test_longer_steps_have_rows_and_looks_come_as_fast_as_they_may_for_some_seconds():
    site = Site()
    site.records.took_s = 0.05
    step = train(site, 20)
    before, hurries = site.records.asked.count(["ranks"]), site.records.hurries
    site.job.changes = {"nodes": (node_snapshot("a", status(0, last_step=step + 10)),)}
    while site.records.hurries == hurries:
        site.clock.now_s += 0.5
        asyncio.run(site.analysis.turn())
    for _ in range(4):
        site.clock.now_s += AGAIN_S
        asyncio.run(site.analysis.turn())
    assert site.records.asked.count(["ranks"]) - before >= 4


def test_a_finding_that_begins_makes_the_hub_prompt():
    site = Site()
    step = train(site, 120)
    site.records.machines = [finding("straggler", confidence=0.95)]
    train(site, 25, began_step=step)
    assert not site.pace.calm


def test_an_attempt_that_is_young_is_watched_promptly():
    site = Site()
    train(site, 20)
    assert not site.pace.calm
    assert site.records.asked.count(["ranks"]) > 15


@pytest.mark.parametrize("cost_s", [0.001, 0.05, 0.3])
def test_heartbeats_are_asked_as_often_as_a_fiftieth_of_the_time_allows(cost_s, monkeypatch):
    site, asked, calm = Site(), [], []
    site.records.stored = 1  # a look is due and waits for rows, so that turns come quickly
    snapshot, consider, began_s = site.job.snapshot, site.analysis.consider, site.clock.now_s

    def dear():
        site.clock.now_s += cost_s
        return snapshot()

    def counted():
        asked.append(site.clock.now_s)
        monkeypatch.setattr(site.job, "snapshot", dear)
        consider()
        monkeypatch.setattr(site.job, "snapshot", snapshot)

    monkeypatch.setattr(site.analysis, "consider", counted)
    while site.clock.now_s < began_s + 300.0:
        step = int((site.clock.now_s - began_s) / 0.1)
        site.job.changes = {"nodes": (node_snapshot("a", status(0, last_step=step)),)}
        site.records.newest = step
        site.clock.now_s += max(POLL_S, asyncio.run(site.analysis.turn()))
        if site.clock.now_s > began_s + 250.0:
            calm.append(site.pace.calm)
    assert len(asked) * cost_s <= 1.05 * CONSIDER_SHARE * 300.0
    assert len(asked) >= 0.7 * min(300.0 / CONSIDER_S, CONSIDER_SHARE * 300.0 / cost_s)
    assert all(calm)


def test_a_job_that_could_not_be_seen_before_the_round_and_can_be_in_it_harms_no_other():
    site = Site()
    site.jobs["late"] = FakeJob(job="late", broken=RuntimeError("no snapshot"))
    site.analysis.consider()
    del site.jobs["late"].changes["broken"]
    assert asyncio.run(site.analysis.look_round()) == TURN_S
    assert set(site.sink.detected) == {"j", "late"}


def test_nothing_is_kept_of_jobs_that_are_forgotten():
    site = Site()
    site.jobs |= {f"j{i}": FakeJob(job=f"j{i}") for i in range(100)}
    site.turn()
    for name in site.jobs:
        site.analysis.forget(name)
    assert (site.analysis._memories, site.analysis._phases) == ({}, {})
