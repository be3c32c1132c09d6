"""Work that differs by design is nobody's fault, and what nobody can tell is not called healthy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulsetrain.analytics.slowness import fail_slow, straggler
from pulsetrain.analytics.slowness.held_up import find_held_up
from pulsetrain.analytics.slowness.straggler_config import StragglerConfig
from pulsetrain.analytics.slowness.timings import from_matrices
from pulsetrain.analytics.slowness.work_groups import APART
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings

MS = 1e6


def compute(steps=200, ranks=8, noise=0.01, seed=0):
    return 80 * MS * np.random.default_rng(seed).lognormal(0, noise, (steps, ranks))


def job(own, **fields):
    """Timings of a synchronous job. `tokens` and `flops` are matrices, other fields those of `Timings`."""
    step = np.broadcast_to(own.max(axis=1, keepdims=True) * 1.1, own.shape).copy()
    matrices = {"compute": own, "wait": step - own, "duration_ns": step}
    matrices |= {name: fields.pop(name) for name in ("tokens", "flops") if name in fields}
    return replace(from_matrices(matrices, job="j"), **fields)


def said(timings):
    (verdict,) = straggler.find(timings)
    assert isinstance(verdict, Inconclusive), verdict
    return verdict.reason


def named(verdicts):
    return [f.subject for f in findings(verdicts)]


STAGES = np.repeat([0, 1], 4)


def test_a_rank_with_more_tokens_is_not_slow_though_some_tokens_were_not_counted():
    own, tokens = compute(), np.full((200, 8), 4096.0)
    own[:, 2] *= 1.5
    tokens[:, 2] *= 1.5
    assert isinstance(straggler.find(job(own, tokens=tokens))[0], Healthy)
    tokens[17, 5] = 0
    assert isinstance(straggler.find(job(own, tokens=tokens))[0], Healthy)


def test_a_stage_that_does_not_count_tokens_has_those_of_its_replica():
    own, tokens = compute(), np.full((200, 8), 4096.0)
    replicas = np.tile(np.arange(4), 2)
    own[:, replicas == 2] *= 1.4
    tokens[:, 2] *= 1.4
    tokens[:, 4:] = 0
    mesh = {"stages": STAGES, "replicas": replicas}
    assert isinstance(straggler.find(job(own, tokens=tokens, **mesh))[0], Healthy)
    own[:, 5] *= 1.4
    assert named(straggler.find(job(own, tokens=tokens, **mesh))) == ["5"]


def test_who_has_fewer_tokens_pays_the_fixed_costs_of_a_step_for_fewer():
    own, tokens = compute(), np.full((200, 8), 4096.0)
    tokens[:, 2] *= 0.7
    own[:, 2] *= 0.5 + 0.5 * 0.7
    assert "has fewer tokens" in said(job(own, tokens=tokens))
    own[:, 6] *= 1.4
    assert named(straggler.find(job(own, tokens=tokens))) == ["6"]


def test_a_part_of_the_sequence_that_is_more_work_accuses_nobody():
    own = compute() * np.array([1, 1.3, 1.6, 1.9] * 2)
    assert "part of the sequence" in said(job(own, contexts=np.tile(np.arange(4), 2)))
    own = compute()
    own[:, 3] *= 1.4
    assert named(straggler.find(job(own, contexts=np.tile(np.arange(4), 2)))) == ["3"]


def test_a_rank_with_more_micro_batches_is_not_slow():
    own, pieces = compute(), np.full((200, 8), 9.0)
    own[:, 2] *= 2
    pieces[:, 2] = 17
    assert "has more micro-batches" in said(job(own, pieces=pieces))
    own[:, 6] *= 1.4
    assert named(straggler.find(job(own, pieces=pieces))) == ["6"]
    pieces[:, 2] = 9
    own[:, 6] /= 1.4
    assert named(straggler.find(job(own, pieces=pieces))) == ["2"]


def test_a_rank_that_is_counted_to_have_more_flops_is_not_slow():
    own, flops = compute(), np.full((200, 8), 1e12)
    own[:, 3] *= 1.3
    assert named(straggler.find(job(own, flops=flops))) == ["3"]
    flops[:, 3] *= 1.3
    assert said(job(own, flops=flops)) == "rank 3 computes 30% longer, and has 30% more FLOPs to do"
    assert named(straggler.find(job(own, flops=flops), inferred=lambda: True)) == ["3"]  # of one early step
    own[:100, 3] /= 1.3
    assert named(fail_slow.find(job(own, flops=flops), recovered=False)) == ["3"]
    flops[:100, 3] /= 1.3
    assert "x slower, and has more FLOPs to do than before" in reason(job(own, flops=flops))


def test_ranks_on_an_older_gpu_model_are_compared_among_themselves():
    models = np.repeat(["A100", "H100"], 4)
    own = compute() * np.where(models == "A100", 2.0, 1.0)
    (verdict,) = straggler.find(job(own, models=models))
    assert isinstance(verdict, Healthy)
    assert verdict.numbers["models"] == ["A100", "H100"]
    own[:, 2] *= 1.3
    (finding,) = findings(straggler.find(job(own, models=models)))
    assert finding.subject == "2"
    assert finding.evidence["ratio"] == pytest.approx(1.3, abs=0.02)


CRITICS = np.repeat([0, 1], [6, 2])


def test_ranks_of_another_role_are_compared_among_themselves():
    own = compute() * np.where(CRITICS, 1.8, 1.0)
    assert sorted(named(straggler.find(job(own)))) == ["6", "7"]
    assert "compute up to 1.80x as long as the others" in said(job(own, roles=CRITICS))
    own[:, 2] *= 1.3
    assert named(straggler.find(job(own, roles=CRITICS))) == ["2"]
    half = compute() * np.repeat([1.8, 1.0], 4)
    half[:, 2] *= 1.3
    assert named(straggler.find(job(half, roles=np.repeat([0, 1], 4)))) == ["2"]


def test_the_only_rank_of_a_role_is_inconclusive_where_it_takes_longer():
    own, roles = compute(), np.repeat([0, 1], [7, 1])
    assert isinstance(straggler.find(job(own, roles=roles))[0], Healthy)
    own[:, 7] *= 1.8
    assert "rank 7 computes up to 1.80x as long as the others" in said(job(own, roles=roles))


def test_ranks_that_share_no_group_with_the_others_may_have_other_work():
    own = compute() * np.where(CRITICS, 1.8, 1.0)
    circles = np.where(CRITICS, 6, 0)
    assert "as all of ranks 6-7 do, which share no process group" in said(job(own, circles=circles))
    nodes = np.where(CRITICS, "b", "a")
    assert "other work" in said(job(own, circles=circles, nodes=nodes))
    own[:, 6] /= 1.8
    assert named(straggler.find(job(own, circles=circles))) == ["7"]


def test_in_a_world_that_is_not_the_jobs_nobody_is_known_to_do_the_same_work():
    own = compute() * np.where(CRITICS, 1.8, 1.0)
    assert "who does the same work is not known" in said(job(own, circles=np.full(8, APART)))


def test_a_slow_node_whose_ranks_average_among_themselves_first_is_named():
    own = compute() * np.repeat([1, 1, 1, 1.8], 2)
    circles, nodes = np.repeat([0, 2, 4, 6], 2), np.repeat(["a", "b", "c", "d"], 2)
    assert named(straggler.find(job(own, circles=circles, nodes=nodes))) == ["d"]


def test_stages_on_unlike_gpu_models_make_a_cohort_for_each_stage_and_model():
    timings = job(compute(), stages=STAGES, models=np.tile(["A100", "H100"], 4))
    assert [cohort.tolist() for cohort in timings.cohorts] == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize("ratio", [1.07, 1.18, 1.5, 2.0])
def test_of_two_ranks_that_always_differed_nobody_can_tell_which_is_slow(ratio):
    own = compute(ranks=2)
    own[:, 1] *= ratio
    assert f"rank 1 computes {ratio:.2f}x as long as rank 0" in said(job(own))
    assert isinstance(straggler.find(job(compute(ranks=2)))[0], Healthy)


def test_two_ranks_that_scatter_are_not_taken_for_a_quick_and_a_slow_one():
    for seed in range(20):
        assert isinstance(straggler.find(job(compute(ranks=2, noise=0.2, seed=seed)))[0], Healthy)


def test_a_job_of_one_rank_has_nobody_to_compare_it_with():
    own = compute(ranks=1)
    assert "one rank" in said(job(own))
    own[150:] *= 3
    assert "one rank" in said(job(own))


def test_a_small_stage_beside_a_large_one_is_compared_with_its_past_or_not_called_healthy():
    stages = np.array([0, 0, 0, 1])
    few = "no two others do the work of rank 3, and 30 steps of equal work are too few"
    assert few in said(job(compute(steps=30, ranks=4), stages=stages))
    assert isinstance(straggler.find(job(compute(steps=60, ranks=4), stages=stages))[0], Healthy)


def test_a_batch_that_grew_lately_leaves_open_who_is_slow_where_each_stage_has_one_rank():
    own, tokens = grown(8.8, 7.04)
    mesh = {"stages": np.arange(2)}
    assert isinstance(straggler.find(job(own, tokens=tokens, **mesh))[0], Healthy)  # since then
    lately = {"tokens": tokens[:150], **mesh}
    assert "steps of equal work are too few" in said(job(own[:150], **lately))
    own[170:, 1] *= 1.4
    assert named(straggler.find(job(own, tokens=tokens, **mesh))) == ["1"]


def test_a_stage_that_takes_longer_as_a_whole_accuses_none_of_its_two_ranks():
    own, stages = compute(ranks=4), np.array([0, 0, 1, 1])
    own[150:] *= np.array([1.3, 1.3, 1.06, 1.06])
    assert "so do the other ranks of its stage" in said(job(own, stages=stages))
    own[150:, 1] /= 1.3
    assert named(straggler.find(job(own, stages=stages))) == ["0"]


def test_a_healthy_verdict_counts_the_ranks_that_nobody_stands_beside():
    own = compute()
    (beside_others,) = straggler.find(job(own, stages=STAGES))
    (alone,) = straggler.find(job(own[:, :4], stages=np.arange(4)))
    assert (beside_others.numbers["alone"], alone.numbers["alone"]) == (0, 4)


def test_where_most_of_a_stage_always_takes_longer_nobody_can_tell_which_is_usual():
    own = compute()
    own[:, :5] *= 1.5
    assert "ranks 0-4 compute 1.50x as long as ranks 5-7 all along" in said(job(own))
    own = compute()
    own[:100, :5] *= 1.5  # they are quick again
    assert isinstance(straggler.find(job(own))[0], Healthy)


def test_of_two_halves_that_always_differed_only_a_whole_node_or_who_became_slow_is_named():
    own = compute()
    own[:, :4] *= 1.5
    why = "ranks 0-3 compute 1.50x as long as ranks 4-7 all along"
    assert why in said(job(own))
    for nodes in ("aabbccdd", "aaaaaaaa", "aaaaaabb"):  # of one node both halves may be
        assert why in said(job(own, nodes=np.array(list(nodes))))
    assert named(straggler.find(job(own, nodes=np.array(list("aaaabbbb"))))) == ["a"]
    own[:80, :4] /= 1.5
    assert set(named(straggler.find(job(own)))) == {"0", "1", "2", "3"}


def test_a_rank_without_a_compute_time_is_not_called_healthy():
    own = compute()
    timings = job(own)
    timings.parts["compute"][:, 3] = np.nan
    assert said(timings) == "the compute time of rank 3 is not known"


def test_experts_with_more_tokens_are_compared_within_their_stage():
    routed = np.full((200, 8), 1e6)
    routed[:, 4:] = 3e6
    own = compute()
    own[:, 6] *= 1.4
    assert named(straggler.find(job(own, stages=STAGES, routed_bytes=routed))) == ["6"]
    routed = np.full((200, 8), 3e6)
    routed[:, :4] = 1e6
    routed[:, 1] *= 1.4
    own = compute()
    own[:, 1] *= 1.4
    assert "uneven load" in said(job(own, stages=STAGES, routed_bytes=routed))


@pytest.mark.parametrize("seen", ["nowhere", "on some ranks"])
def test_experts_whose_tokens_are_not_seen_may_just_get_more_of_them(seen):
    experts, routed = np.tile(np.arange(4), 2), np.zeros((200, 8))
    if seen == "on some ranks":
        routed[:, 4:] = 1e6
    own = compute()
    own[:, 2] *= 1.4
    why = "not seen how many tokens its experts get"
    assert why in said(job(own, experts=experts, routed_bytes=routed))
    assert named(straggler.find(job(own, experts=experts, routed_bytes=routed + 1e6))) == ["2"]
    assert named(straggler.find(job(own, experts=np.zeros(8, np.int64), routed_bytes=routed))) == ["2"]
    own[:100, 2] /= 1.4
    assert why in reason(job(own, experts=experts, routed_bytes=routed))


def test_a_stage_without_experts_is_not_excused_by_those_of_other_stages():
    stages, experts = np.repeat([0, 1], 4), np.array([-1] * 4 + [0, 1, 2, 3])
    own, routed = compute(), np.zeros((200, 8))
    own[:, 2] *= 1.2
    routed[:, 4:] = 1e6
    assert named(straggler.find(job(own, stages=stages, experts=experts, routed_bytes=routed))) == ["2"]
    routed[:, 5] = np.nan  # nothing of it is on record
    own[:, 6] *= 1.2
    found = named(straggler.find(job(own, stages=stages, experts=experts, routed_bytes=routed)))
    assert sorted(found) == ["2", "6"]


def test_a_rank_that_becomes_slower_with_more_routed_tokens_is_not_named():
    own, routed = compute(), np.full((200, 8), 1e6)
    own[100:, 2] *= 1.35
    assert named(fail_slow.find(job(own, routed_bytes=routed))) == ["2"]
    routed[100:, 2] *= 1.4
    (verdict,) = fail_slow.find(job(own, routed_bytes=routed))
    assert isinstance(verdict, Inconclusive)
    assert "routed tokens" in verdict.reason


def test_longer_batches_that_cost_most_ranks_less_per_token_accuse_nobody():
    own, tokens = compute(), np.full((200, 8), 4096.0)
    own[100:] *= np.array([1.6] * 6 + [2.0] * 2)
    tokens[100:] *= 2
    stages = np.repeat([0, 1, 2, 3], 2)
    assert not named(fail_slow.find(job(own, tokens=tokens, stages=stages), recovered=False))
    own[100:, 2] *= 1.5
    assert "2" in named(fail_slow.find(job(own, tokens=tokens, stages=stages), recovered=False))


def grown(*factors, tokens=4.0, noise=0.01):
    """Matrices of compute and tokens of ranks that come to get more tokens at step 120, and take longer."""
    own, counted = compute(ranks=len(factors), noise=noise), np.full((200, len(factors)), 8192.0)
    own[120:] *= np.array(factors)
    counted[120:] *= tokens
    return own, counted


def reason(timings):
    (verdict,) = [v for v in fail_slow.find(timings, recovered=False) if not isinstance(v, Finding)]
    assert isinstance(verdict, Inconclusive), verdict
    return verdict.reason


def test_longer_sequences_that_cost_a_stage_more_for_each_token_accuse_none_of_its_ranks():
    own, tokens = grown(*[8.8] * 4, *[7.04] * 4)
    assert not [f for f in named(fail_slow.find(job(own, tokens=tokens, stages=STAGES))) if f != "j"]
    own[120:, 1] *= 1.3
    assert "1" in named(fail_slow.find(job(own, tokens=tokens, stages=STAGES)))


@pytest.mark.parametrize("factors", [(8.8, 7.04), (8.8, 7.04, 7.04, 7.04)])
def test_longer_sequences_leave_open_who_is_slow_where_each_stage_has_one_rank(factors):
    own, tokens = grown(*factors)
    assert "nobody else computes its stage" in reason(job(own, tokens=tokens, stages=np.arange(len(factors))))


def test_a_rank_that_came_to_get_fewer_tokens_did_not_become_slow():
    own, tokens = compute(), np.full((200, 8), 4096.0)
    own[100:, 3] *= 100 / 160
    tokens[100:, 3] /= 2
    assert "it has fewer tokens" in reason(job(own, tokens=tokens))
    own[100:, 5] *= 1.4
    assert named(fail_slow.find(job(own, tokens=tokens), recovered=False)) == ["5"]


def test_a_rank_that_came_to_have_more_micro_batches_did_not_become_slow():
    own, pieces = compute(), np.full((200, 8), 9.0)
    own[100:, 2] *= 2
    assert named(fail_slow.find(job(own, pieces=pieces), recovered=False)) == ["2"]
    pieces[100:, 2] = 17
    assert "has more micro-batches" in reason(job(own, pieces=pieces))


def test_a_part_of_the_sequence_that_came_to_be_more_work_accuses_nobody():
    contexts = np.tile(np.arange(4), 2)
    own = compute()
    own[100:, contexts == 3] *= 1.3
    assert "same part of the sequence" in reason(job(own, contexts=contexts))
    own[100:, 3] /= 1.3
    assert named(fail_slow.find(job(own, contexts=contexts), recovered=False)) == ["7"]


def test_a_rank_that_is_alone_in_its_stage_is_slow_since_it_became_so():
    own = compute(ranks=4)
    own[100:, 2] *= 1.5
    (finding,) = findings(straggler.find(job(own, stages=np.arange(4))))
    assert finding.subject == "2"
    assert abs(finding.evidence["first_step"] - 100) <= 1


def test_a_rank_that_sleeps_outside_its_phases_is_not_stopped_while_it_computes():
    def held(compute_ms):
        own = compute()
        own[:, 0] += compute_ms * MS
        timings = job(own)
        timings.parts["off_cpu"] = np.zeros_like(own)
        timings.parts["off_cpu"][:, 0] = 15 * MS
        return [suspect.subject for suspect in find_held_up(timings, StragglerConfig())]

    assert held(0) == []
    assert held(15) == ["0"]


def test_a_batch_that_grew_for_all_accuses_nobody_who_is_alone_in_its_stage():
    own = compute(ranks=4)
    own[100:] *= np.array([1.6, 1.6, 1.6, 2.0])
    assert not named(straggler.find(job(own, stages=np.arange(4))))
    own[100:] /= 1.6
    assert named(straggler.find(job(own, stages=np.arange(4)))) == ["3"]


def test_a_step_that_was_lost_hides_no_rank_that_became_slower():
    own = compute(ranks=2)
    own[120:, 1] *= 2
    own[30, 1] = np.nan
    assert named(straggler.find(job(own))) == ["1"]
