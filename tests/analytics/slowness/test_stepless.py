"""Who is slow in a job that names no steps."""

import numpy as np
import pyarrow as pa
import pytest

from pulsetrain.analytics.slowness import stepless
from pulsetrain.analytics.slowness.operations import operations_of
from pulsetrain.analytics.slowness.rounds import cut, losses_of
from pulsetrain.analytics.verdict import Healthy, Inconclusive
from tests.analytics.slowness.collectives_of import (
    BEGAN_NS,
    MS,
    NO_LOSSES,
    NOBODY,
    Job,
    ddp,
    everybody,
    fsdp,
    named,
    pipeline,
    said_of,
    slow,
    tensor_parallel,
)

JOBS = {"ddp": (ddp, 160), "fsdp": (fsdp, 160), "tensor_parallel": (tensor_parallel, 240)}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("since", [0, 1 / 2])
def test_a_slow_rank_is_named_from_the_start_and_from_the_middle(job, since):
    run, steps = JOBS[job]
    [finding] = said_of(run(Job(factor=slow(2, 1.3, since=int(since * steps))), steps))
    assert (finding.subject_type, finding.subject, finding.severity) == ("rank", "2", "warning")
    assert finding.evidence["ratio"] == pytest.approx(1.3, abs=0.04)
    assert finding.evidence["rounds"]
    if job != "tensor_parallel":  # its groups have two members
        assert finding.evidence["witnesses"] == ["own time", "arrivals"]
    assert "step" not in finding.summary
    assert " in its own work than its cohort for " in finding.summary
    assert finding.summary.endswith(" s, by rounds of its collectives.")


@pytest.mark.parametrize("job", JOBS)
def test_two_hundred_clean_windows_name_nobody(job):
    run, steps = JOBS[job]
    for seed in range(67):
        said = said_of(run(Job(seed=seed, noise=(0.01, 0.03, 0.1)[seed % 3]), steps // 2))
        assert [type(verdict) for verdict in said] == [Healthy], (seed, said)


def test_a_worse_fault_is_not_milder_and_a_renamed_rank_renames_the_answer():
    ratios = []
    for ratio in (1.2, 1.4, 2.0):
        [finding] = said_of(ddp(Job(factor=slow(1, ratio)), 100))
        assert (finding.subject, finding.severity) == ("1", "warning")
        ratios.append(finding.evidence["ratio"])
    assert ratios == sorted(ratios)
    assert named(said_of(ddp(Job(factor=slow(3, 1.4)), 100))) == {"3"}


def test_the_order_of_rows_changes_nothing():
    job = ddp(Job(factor=slow(1, 1.3)), 80)
    assert said_of(job) == said_of(job, seed=1)


def test_nodes_whose_clocks_are_apart_are_compared_all_the_same():
    job = Job(factor=slow(3, 1.3), clock=(0, 40e9), drift=(0, 3e-5))
    assert named(said_of(ddp(job, 120))) == {"3"}
    assert isinstance(said_of(ddp(Job(clock=(0, -7e9), drift=(1e-5, 0)), 120))[0], Healthy)


def test_a_rank_that_saves_now_and_then_is_not_slow():
    assert isinstance(said_of(ddp(Job(), 300, save_every=60))[0], Healthy)
    assert isinstance(said_of(ddp(Job(seed=1), 300, save_every=25, save_ms=900))[0], Healthy)


def test_evaluations_are_in_no_round():
    job = ddp(Job(factor=slow(1, 1.3)), 240, evaluate_every=80)
    assert named(said_of(job)) == {"1"}
    operations = operations_of(job.table())
    cuts = cut(operations)
    lengths = cuts.end_ns - cuts.begin_ns
    assert lengths.max() < 1.2 * np.median(lengths)


def test_rounds_keep_their_numbers_from_one_look_to_the_next():
    table = ddp(Job(), 160).table()
    start = table["start_ns"].to_numpy()
    early, late = (
        cut(operations_of(table.filter(pa.array(kept))))
        for kept in (start < BEGAN_NS + 12e9, start > BEGAN_NS + 4e9)
    )
    shared = np.intersect1d(early.number, late.number)
    assert len(shared) > 10
    spans = [
        {int(n): round(float(e - b)) for n, b, e in zip(c.number, c.begin_ns, c.end_ns, strict=True)}
        for c in (early, late)
    ]
    assert all(abs(spans[0][n] - spans[1][n]) < 1000 for n in shared.tolist())


def test_a_pipeline_without_replicas_is_compared_with_its_past():
    said = said_of(pipeline(Job(per_node=4, factor=slow(2, 1.5, since=100)), 160))
    assert named(said) == {"2"}
    clean = said_of(pipeline(Job(per_node=4), 160))
    assert isinstance(clean[0], Healthy)
    assert clean[0].numbers["alone"] == 4


def test_transfers_both_ways_tell_how_far_clocks_of_a_pipeline_are_apart():
    job = Job(factor=slow(2, 1.5, since=100), clock=(0, 5e9, -3e9, 1e9), per_node=1)
    assert named(said_of(pipeline(job, 160))) == {"2"}
    assert isinstance(said_of(pipeline(Job(per_node=1, clock=(0, 5e9, -3e9, 1e9)), 160))[0], Healthy)


def test_a_node_that_only_sends_has_a_clock_that_nobody_knows():
    job = Job(per_node=1)
    for _ in range(150):
        job.compute(100)
        for rank in range(3):
            job.transfer(rank, rank + 1, 4096)
    assert "how far clocks are apart" in reason(said_of(job))


def test_a_rank_that_loads_for_all_and_broadcasts_is_not_slow():
    job = Job()
    for _ in range(150):
        job.compute(30, [0])
        job.collective("broadcast", everybody(job), 4096)
        job.compute(80)
        job.collective("all_reduce", everybody(job), 1 << 22)
    assert isinstance(said_of(job)[0], Healthy)


def reason(said):
    [verdict] = said
    assert isinstance(verdict, Inconclusive)
    assert verdict.reason.startswith(stepless.STAND_FOR)
    return verdict.reason


def test_a_rank_that_only_produces_data_is_other_work():
    job = Job()
    for _ in range(150):
        job.compute(80, [1, 2, 3])
        job.collective("all_reduce", [[1, 2, 3]], 1 << 22)
        job.compute(10, [0])
        for rank in (1, 2, 3):
            job.transfer(0, rank, 4096)
    assert "which of them do the same work" in reason(said_of(job))
    job = Job()
    for _ in range(150):
        job.collective("all_reduce", everybody(job), 64)
        job.compute(50)
        job.collective("all_reduce", [[0, 1]], 1 << 22)
    assert "other work" in reason(said_of(job))


def test_work_as_it_is_asked_for_does_not_repeat_itself():
    job = Job()
    for length in np.random.default_rng(0).integers(1, 60, 400).tolist():
        job.compute(float(length))
        for _ in range(length % 7):
            job.collective("all_reduce" if length % 3 else "all_gather", everybody(job), length)
    assert "do not repeat themselves" in reason(said_of(job))


def test_where_devices_wait_the_answer_says_who_comes_last():
    job = Job(factor=slow(2, 1.5))
    for _ in range(150):
        job.compute(100)
        job.collective("all_reduce", everybody(job), 1 << 22, known=False)
    told = reason(said_of(job))
    assert "stand still" in told
    assert "rank 2 comes last" in told


def test_few_operations_or_one_rank_are_no_traceback():
    assert "no operations" in reason(said_of_table(Job()))
    assert reason(said_of(ddp(Job(), 1)))
    assert reason(said_of(ddp(Job(), 6)))
    assert reason(said_of(ddp(Job(ranks=1), 100)))


def said_of_table(job):
    empty = ddp(job, 1).table().slice(0, 0)
    found = stepless.rounds_from(empty, NO_LOSSES, NOBODY, job="j", attempt=0, now_ns=0)
    return stepless.verdicts(found)


def losses(seconds, lost):
    """Every quarter of a second, `lost[rank]` maps a phase to the share of it that was lost since `at` s."""
    rows = []
    for rank in range(4):
        for quarter in range(4 * seconds):
            start = BEGAN_NS + quarter * 250 * MS
            shares = {"cpu_wait": 0.0} | lost(rank, quarter / 4)
            rows += [(rank, phase, start, int(share * 250 * MS)) for phase, share in shares.items()]
    names = ("rank", "phase", "start_ns", "lost_ns")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def test_a_rank_that_something_stops_is_named_with_its_cause():
    job = ddp(Job(factor=slow(2, 1.4, since=100)), 200)
    seconds = int(job.at.max() / 1e9)
    onset_s = 100 * 0.1303
    told = losses(seconds, lambda rank, at: {"off_cpu": 0.25} if rank == 2 and at > onset_s else {})
    [finding] = said_of(job, told)
    assert (finding.subject, finding.evidence["cause"]) == ("2", "off_cpu")
    assert "is stopped or sleeps again and again" in finding.summary


def test_one_long_pause_of_a_rank_is_not_a_rank_that_is_stopped():
    def pause(step):
        return slow(2, 5.0)(step) if step == 190 else np.ones(4)

    job = ddp(Job(factor=pause), 200)
    at_s = 190 * 0.1303
    told = losses(
        int(job.at.max() / 1e9) + 1,
        lambda rank, at: {"off_cpu": 1.0} if rank == 2 and 0 <= at - at_s < 0.5 else {},
    )
    assert isinstance(said_of(job, told)[0], Healthy)


def test_the_last_loss_of_a_rank_does_not_count_for_rounds_of_which_none_is_told():
    """The newest rows of its losses have not come for two seconds, and the last that did was off for once."""
    job = ddp(Job(factor=slow(2, 1.2, since=185)), 200)
    seconds = job.at.max() / 1e9
    told_s = int(4 * (seconds - 2)) / 4
    told = losses(
        int(seconds) + 1, lambda rank, at: {"off_cpu": 0.5} if rank == 2 and told_s - 0.5 < at else {}
    )
    told = told.filter(pa.array(told["start_ns"].to_numpy() < BEGAN_NS + told_s * 1e9))
    assert not any(getattr(v, "evidence", {}).get("cause") for v in said_of(job, told))


def test_a_loss_that_is_told_late_is_of_the_time_in_which_it_was():
    job = ddp(Job(), 100)
    operations = operations_of(job.table())
    cuts = cut(operations)
    rows = [(2, "cpu_wait", BEGAN_NS + quarter * 250 * MS, 0) for quarter in range(41)]
    rows.append((2, "off_cpu", BEGAN_NS + 10_000 * MS, 1000 * MS))  # until 11 s or later
    names = ("rank", "phase", "start_ns", "lost_ns")
    told = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    lost = losses_of(operations, told, cuts, np.array([2]))["off_cpu"][:, 0]
    assert (lost <= 1.001 * (cuts.end_ns - cuts.begin_ns)).all()
    assert lost.sum() <= 1001 * MS


def test_a_rank_that_was_off_for_two_seconds_is_not_stopped_again_and_again():
    job = ddp(Job(factor=slow(2, 1.2, since=185)), 200)
    off_s = job.at.max() / 1e9 - 2.5
    told = losses(
        int(job.at.max() / 1e9) + 1,
        lambda rank, at: {"off_cpu": 0.2} if rank == 2 and at >= off_s else {},
    )
    assert not any(getattr(v, "evidence", {}).get("cause") for v in said_of(job, told))


def test_ranks_that_queue_for_processors_are_compared_net_of_it():
    """Rank 1 takes 30 % longer, all of which it waits in a run queue, as any rank does at times."""
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.1, 0.4, (4, 400))
    job = Job(noise=0.01)
    job.factor = lambda step: 1 / (1 - shares[:, int(job.at.max() / 250e6)])
    ddp(job, 160)
    told = losses(int(job.at.max() / 1e9), lambda rank, at: {"cpu_wait": shares[rank, int(4 * at)] * 0.7})
    assert not named(said_of(job, told))


def test_a_rank_that_cannot_tell_its_losses_is_not_slow_for_it():
    job = ddp(Job(), 200)
    told = losses(int(job.at.max() / 1e9), lambda rank, at: {"cpu_wait": 0.2})
    assert isinstance(said_of(job, told.filter(pa.array(told["rank"].to_numpy() != 1)))[0], Healthy)


def test_rounds_before_losses_were_told_are_left_out():
    """Otherwise a rank that always queues would seem to have begun to."""
    job = ddp(Job(), 200)
    every = losses(int(job.at.max() / 1e9), lambda rank, at: {})
    late = every.filter(pa.array(every["start_ns"].to_numpy() > BEGAN_NS + 14e9))
    whole, rest = (said_of(job, told)[0].numbers["steps"] for told in (every, late))
    assert 0.4 * whole < rest < 0.5 * whole
    assert "16 are needed" in reason(said_of(job, late.slice(late.num_rows - 1)))


def test_rows_of_a_node_that_come_later_are_no_other_work():
    """Those of its last two seconds are not stored yet."""
    table = ddp(Job(factor=slow(1, 1.3)), 120).table()
    end = table["start_ns"].to_numpy().max()
    late = (table["rank"].to_numpy() > 1) & (table["start_ns"].to_numpy() > end - 2e9)
    found = stepless.rounds_from(
        table.filter(pa.array(~late)), NO_LOSSES, NOBODY, job="j", attempt=0, now_ns=0
    )
    assert named(stepless.verdicts(found)) == {"1"}


class Store:
    """Answers as a store that holds the operations of one job."""

    def __init__(self, job, per_second=None, topology=NOBODY):
        self.table, self.topology = job.table(), topology
        self.per_second = per_second
        self.asked = []

    def query(self, sql, params=None):
        self.asked.append(sql)
        if "AS operations" in sql:
            second = self.table["start_ns"].to_numpy() // 10**9
            seconds = pa.table({"node": self.table["node"], "second": second})
            counted = seconds.group_by(["node", "second"]).aggregate([([], "count_all")])
            counted = counted.rename_columns(["node", "second", "operations"])
            if self.per_second is not None:
                each = pa.array(np.full(counted.num_rows, self.per_second // 2))
                counted = counted.set_column(2, "operations", each)
            return counted.sort_by([("second", "descending")])
        if "lost_ns" in sql:
            return NO_LOSSES
        if "blocked_ns" in sql:
            since = dict(zip(params["nodes"], params["since"], strict=True))
            of_node = np.array([since[node] for node in self.table["node"].to_pylist()])
            return self.table.filter(pa.array(self.table["start_ns"].to_numpy() >= of_node))
        if "FROM events" in sql or "FROM metrics" in sql or "min(ts)" in sql:
            return pa.table({})
        return self.topology if "FROM topology" in sql else NOBODY


def analyze(store):
    return stepless.analyze(stepless.newest(store, "j", 0), store, "j", 0, now_ns=0)


def test_only_the_newest_operations_are_read_and_more_where_rounds_are_long():
    quick = Store(ddp(Job(), 500))
    [verdict] = analyze(quick)
    assert verdict.numbers["steps"] < 120
    assert sum("blocked_ns" in sql for sql in quick.asked) == 1
    long = Store(ddp(Job(factor=lambda step: np.full(4, 8.0)), 90))
    [verdict] = analyze(long)
    assert verdict.numbers["steps"] > 60


class Gpus:
    """What the nodes n0 and n1 have."""

    def __init__(self, *models, uses_gpus=True):
        self.models, self.uses_gpus = dict(zip(("n0", "n1"), models, strict=True)), uses_gpus

    def unlike(self, nodes):
        return [self.models[node] for node in nodes] if len(set(self.models.values())) > 1 else []


def told_on(gpus, job, lost=NO_LOSSES):
    found = stepless.rounds_from(job.table(), lost, NOBODY, job="j", attempt=0, now_ns=0, hardware=gpus)
    return stepless.verdicts(found)


def test_ranks_on_other_gpus_are_not_slow_for_it():
    job = ddp(Job(per_node=4, ranks=8, factor=lambda step: np.repeat([1.0, 1.4], 4)), 160)
    assert named(told_on(Gpus("A", "A"), job)) == {"n1"}
    [verdict] = told_on(Gpus("A", "B"), job)
    assert verdict.numbers["models"] == ["A", "B"]
    both = np.repeat([1.0, 1.4], 4) * slow(5, 1.3, ranks=8)(0)
    assert named(told_on(Gpus("A", "B"), ddp(Job(per_node=4, ranks=8, factor=lambda s: both), 160))) == {"5"}


def test_time_off_the_processor_names_nobody_where_gpus_compute():
    job = ddp(Job(), 200)
    lengthened = ddp(Job(factor=slow(2, 1.4, since=100)), 200)
    seconds = int(lengthened.at.max() / 1e9)
    lost = losses(seconds, lambda rank, at: {"off_cpu": 0.25} if rank == 2 else {})
    [finding] = told_on(Gpus("A", "A", uses_gpus=False), lengthened, lost)
    assert finding.evidence["cause"] == "off_cpu"
    assert isinstance(told_on(Gpus("A", "A"), job, lost)[0], Healthy)
    [finding] = told_on(Gpus("A", "A"), lengthened, lost)
    assert finding.evidence["cause"] == ""


def ranks_of(job):
    return pa.table({"rank": list(range(job.ranks)), "node": [f"n{r // 2}" for r in range(job.ranks)]})


@pytest.mark.parametrize("offset_s", [45, -45])
def test_a_node_whose_clock_is_far_off_is_read_too(offset_s):
    job = ddp(Job(factor=slow(3, 1.3), clock=(0, offset_s * 1e9)), 400)
    assert named(analyze(Store(job, topology=ranks_of(job)))) == {"3"}
    clean = ddp(Job(clock=(0, offset_s * 1e9)), 400)
    [verdict] = analyze(Store(clean, topology=ranks_of(clean)))
    assert isinstance(verdict, Healthy)
    assert verdict.numbers["ranks"] == 4


def test_a_job_of_which_a_rank_tells_nothing_is_not_healthy():
    job = ddp(Job(ranks=4), 100)
    store = Store(job, topology=ranks_of(Job(ranks=5)))
    assert "rank 4 told no newest operation" in reason(analyze(store))
    job = ddp(Job(ranks=4, factor=slow(1, 1.4)), 100)
    assert named(analyze(Store(job, topology=ranks_of(Job(ranks=5))))) == {"1"}


def test_a_job_with_too_many_operations_is_not_read():
    store = Store(ddp(Job(), 100), per_second=400_000)
    [verdict] = analyze(store)
    assert "too many to read" in verdict.reason
    assert not any("blocked_ns" in sql for sql in store.asked)


def test_confidences_are_not_those_that_were_measured_with_steps():
    [finding] = analyze(Store(ddp(Job(factor=slow(1, 1.5)), 200)))
    assert finding.evidence["calibrated"] is False
    assert finding.confidence <= 0.85
