"""Hang verdicts from live state: the laws of an analyzer on the 3-D parallel job of the demo."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.analytics.hangs.evidence import HashedGroupKey
from pulsetrain.analytics.hangs.posture import Posture, StackSample, begin
from pulsetrain.analytics.incidents.correlate import join
from pulsetrain.analytics.verdict import Finding, Healthy, Inconclusive, findings
from pulsetrain.analytics.watch import JobView, WatchConfig, crash, hang, hang_limit_ns, look
from pulsetrain.protocol.messages import (
    GroupStatus,
    RankActivity,
    RankExit,
    RankStatus,
    StuckConnection,
    WorldNode,
)
from pulsetrain.simulate.live.fleet import LiveFleet
from pulsetrain.simulate.live.job import LiveJob
from pulsetrain.simulate.live.plan import parse_plan
from tests.simulate.live.fleets import launch, run_until, say

S = 1_000_000_000
NOW = 1_790_000_000 * S
WORLD = tuple(
    WorldNode(node=f"node{n}", node_rank=n, address="127.0.0.1", peer_port=1, nproc=2) for n in range(4)
)


def coordinates(rank: int) -> tuple[int, int, int]:
    return rank // 4, rank // 2 % 2, rank % 2  # pp, dp, tp


def tp_group(rank: int) -> tuple[int, ...]:
    return (rank - rank % 2, rank - rank % 2 + 1)


def dp_group(rank: int) -> tuple[int, ...]:
    base = rank - 2 * coordinates(rank)[1]
    return (base, base + 2)


def pp_group(rank: int) -> tuple[int, ...]:
    return (rank % 4, rank % 4 + 4)


def group(name: str, members: tuple[int, ...], done: int, op: str = "", **more) -> GroupStatus:
    """A group whose `done` operations ended; `op` is one more in flight."""
    full = f"{name}{members[0]}"
    if not op:
        return GroupStatus(group=full, members=members, enqueued=done, completed=done)
    return GroupStatus(
        group=full, members=members, enqueued=done + 1, completed=done, op=op, op_seq=done + 1, **more
    )


def status(
    rank: int, silent_s: float, *groups: GroupStatus, state="sleeping", phase="all_reduce"
) -> RankStatus:
    return RankStatus(
        rank=rank,
        local_rank=rank % 2,
        pid=1000 + rank,
        state=state,
        last_step=5,
        last_phase=phase,
        phase_age_ns=int(silent_s * S),
        progress=100,
        progress_age_ns=int(silent_s * S),
        groups=groups,
    )


def stuck_job(culprit: int, silent_s: float = 4.0, state: str = "stopped") -> list[RankStatus]:
    """The culprit stopped computing; its tp, pp and dp peers wait for it, and the rest wait for those."""
    ranks = []
    for rank in range(8):
        tp, dp, pp = tp_group(rank), dp_group(rank), pp_group(rank)
        if rank == culprit:
            own = (group("tp", tp, 40), group("dp", dp, 5), group("pp", pp, 10))
            ranks.append(status(rank, silent_s + 0.2, *own, state=state, phase="forward"))
        elif culprit in tp:
            own = (group("tp", tp, 40, "all_reduce", op_bytes=64), group("dp", dp, 5), group("pp", pp, 10))
            ranks.append(status(rank, silent_s + 0.1, *own))
        elif tp[0] in pp_group(culprit) or tp[1] in pp_group(culprit):
            peer = next(m for m in pp if m != rank)
            own = (group("tp", tp, 44), group("dp", dp, 5), group("pp", pp, 10, "recv", peer=peer))
            ranks.append(status(rank, silent_s, *own, phase="recv"))
        else:
            own = (group("tp", tp, 44), group("dp", dp, 5, "all_reduce", op_bytes=4096), group("pp", pp, 12))
            ranks.append(status(rank, silent_s, *own))
    return ranks


def view(ranks, **more) -> JobView:
    base = {
        "job": "gpt",
        "attempt": 0,
        "now_ns": NOW,
        "ranks": tuple(ranks),
        "median_step_ns": int(0.8 * S),
        "first_step_done": True,
        "world": WORLD,
    }
    return JobView(**{**base, **more})


def idle(rank) -> RankActivity:
    return RankActivity(rank=rank, cpu_ratio=0.0, helper_cpu_ratio=0.0, io_bytes_s=0.0, still_ns=S)


def culprits(verdicts) -> list[str]:
    return [f.subject for f in findings(verdicts)]


@pytest.mark.parametrize("culprit", range(8))
@pytest.mark.parametrize("state", ["stopped", "running", "sleeping", "disk"])
def test_a_rank_that_never_joined_is_named_and_its_victims_are_not(culprit, state):
    (finding,) = hang(view(stuck_job(culprit, state=state)))
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.subject_type, finding.subject) == ("hang", "rank", str(culprit))
    assert finding.evidence["class"] == "rank"
    assert finding.evidence["nodes"] == [f"node{culprit // 2}"]
    assert set(finding.evidence["victims"]) == set(range(8)) - {culprit}


@given(st.permutations(range(8)), st.integers(0, 7))
def test_order_of_reports_changes_nothing(order, culprit):
    ranks = stuck_job(culprit)
    assert culprits(hang(view([ranks[i] for i in order]))) == [str(culprit)]


@given(st.permutations(range(8)), st.integers(0, 7))
def test_renaming_ranks_renames_the_answer(names, culprit):
    ranks = [
        replace(
            r,
            rank=names[r.rank],
            groups=tuple(
                replace(
                    g,
                    members=tuple(names[m] for m in g.members),
                    peer=names[g.peer] if g.peer >= 0 else -1,
                )
                for g in r.groups
            ),
        )
        for r in stuck_job(culprit, state="running")
    ]
    assert culprits(hang(view(ranks))) == [str(names[culprit])]


@pytest.mark.parametrize(
    ("line", "advised"), [("KeyError: 'input_ids'", True), ("NCCL WARN Call to ibv_modify_qp failed", False)]
)
def test_nobody_is_advised_to_evict_the_machine_of_a_script_with_an_exception(line, advised):
    exit_ = RankExit(node="a", ts_ns=1, job="j", attempt=0, rank=5, pid=1, code=1, last_lines=(line,))
    (finding,) = crash(JobView(job="j", attempt=0, now_ns=3, exits=(exit_,)))
    assert ("Mend" in finding.evidence.get("suggested_action", "")) is advised


@pytest.mark.parametrize("still_s", [4.0, 30.0, 600.0])
def test_ranks_that_have_ended_are_at_fault_only_where_somebody_waits_for_them(still_s):
    """The others of a script end while one still uploads what was trained."""
    done, waits = group("dp", (0, 1), 60), group("dp", (0, 1), 60, "all_reduce")
    ended = status(1, still_s, done, state="gone")
    assert not findings(hang(view([status(0, still_s, done, phase="optimizer"), ended])))
    (finding,) = findings(hang(view([status(0, still_s, waits), ended])))
    assert finding.subject == "1"


def test_a_moving_job_is_healthy():
    ranks = [replace(r, progress_age_ns=S) for r in stuck_job(3, state="running")]
    assert isinstance(hang(view(ranks))[0], Healthy)


def test_one_moving_rank_is_enough_to_be_no_hang():
    ranks = stuck_job(3, state="running")
    ranks[6] = replace(ranks[6], progress_age_ns=S // 2)
    assert isinstance(hang(view(ranks))[0], Healthy)


def test_ranks_that_wait_for_each_other_are_not_healthy_because_a_rank_outside_moves():
    ranks = stuck_job(3, state="running")
    alone = status(8, 0.1, phase="")
    (verdict,) = hang(view([*ranks, alone]))
    assert isinstance(verdict, Inconclusive)
    assert "ranks [0, 1, 2, 3, 4, 5, 6, 7] wait" in verdict.reason
    moves = replace(ranks[3], progress_age_ns=0)  # the others wait for it
    assert isinstance(hang(view([*ranks[:3], moves, *ranks[4:], alone]))[0], Healthy)


def test_ranks_that_wait_for_somebody_of_whom_nothing_is_known_are_left_alone():
    waits = [status(r, 30, group("engine", (0, 1, 16), 7, "broadcast")) for r in (0, 1)]
    assert isinstance(hang(view([*waits, status(2, 0.1, phase="")]))[0], Healthy)


def test_a_stopped_process_is_named_before_the_rest_of_the_job_is_still():
    ranks = stuck_job(5, silent_s=2.1)
    ranks[0] = replace(ranks[0], progress_age_ns=0)
    (finding,) = hang(view(ranks, activity={5: idle(5)}))
    assert finding.subject == "5"
    assert finding.confidence > 0.9


def test_a_process_that_is_stopped_and_continued_again_and_again_is_not_frozen():
    ranks = stuck_job(5, silent_s=9.0)
    ranks[0] = replace(ranks[0], progress_age_ns=0)
    assert findings(hang(view(ranks, activity={5: replace(idle(5), cpu_ratio=0.1)}))) == []
    still = [replace(r, progress_age_ns=9 * S) for r in ranks]
    assert findings(hang(view(still, activity={5: replace(idle(5), cpu_ratio=0.1)}))) == []


def test_a_stopped_process_that_was_seen_once_may_be_between_two_turns():
    ranks = stuck_job(5, silent_s=3.0)
    ranks[0] = replace(ranks[0], progress_age_ns=0)
    assert findings(hang(view(ranks))) == []
    assert culprits(hang(view([replace(r, progress_age_ns=r.progress_age_ns * 2) for r in ranks]))) == ["5"]


def test_a_stop_in_the_middle_of_an_operation_shows_in_the_process_state():
    g = (2, 3)
    waiting = group("tp", g, 40, "all_reduce", op_bytes=64)
    ranks = [status(2, 4.0, waiting), status(3, 4.0, waiting, state="stopped")]
    assert culprits(hang(view(ranks, world=()))) == ["3"]


def test_peers_that_a_ring_has_not_served_yet_are_victims_of_the_rank_stopped_inside_it():
    world = tuple(range(8))
    served = {0, 6, 7}
    ranks = [
        status(r, 4, group("world", world, 10) if r in served else group("world", world, 9, "all_reduce"))
        for r in range(8)
        if r != 5
    ]
    stopped = status(5, 4.2, group("world", world, 9, "all_reduce"), state="stopped")
    assert culprits(hang(view([*ranks, stopped]))) == ["5"]
    (finding,) = findings(hang(view([*ranks, stopped])))
    assert set(finding.evidence["victims"]) == {1, 2, 3, 4}


def test_without_a_stopped_process_a_joined_collective_is_the_network():
    waiting = group("tp", (2, 3), 40, "all_reduce", op_bytes=64)
    (finding,) = hang(view([status(2, 4.0, waiting), status(3, 4.0, waiting)], world=()))
    assert finding.evidence["class"] == "network"
    assert (finding.subject_type, finding.subject) == ("group", "tp2")


def test_a_joined_transfer_that_does_not_move_is_the_network():
    a = status(0, 4.0, group("pp", (0, 4), 3, "send", peer=4), phase="send")
    b = status(4, 4.0, group("pp", (0, 4), 3, "recv", peer=0), phase="recv")
    (finding,) = hang(view([a, b], world=()))
    assert finding.evidence["class"] == "network"


TWO_NODES = tuple(
    WorldNode(node=name, node_rank=n, address=f"10.0.0.{n}", peer_port=1, nproc=1)
    for n, name in enumerate("ab")
)


def resends(rank, **more) -> RankActivity:
    stuck = (StuckConnection(local=f"10.0.0.{rank}", remote=f"10.0.0.{1 - rank}", resends=5),)
    fields = {"still_ns": 4 * S, "waits_in": "poll", "stuck": stuck} | more
    return replace(idle(rank), **fields)


def cut(*, behind=False, phase="all_reduce", **more) -> JobView:
    """Two ranks whose link carries nothing. `behind`: one of them had finished the collective before."""
    first = group("dp", (0, 1), 40, "all_reduce", op_bytes=64)
    other = group("dp", (0, 1), 39, "all_reduce", op_bytes=64) if behind else first
    ranks = [status(0, 4.0, first), status(1, 4.0, other, phase=phase)]
    return view(ranks, world=TWO_NODES, activity={0: resends(0), 1: resends(1, **more)})


@pytest.mark.parametrize("behind", [False, True])
def test_a_link_that_carries_nothing_is_named_and_no_rank(behind):
    (finding,) = findings(hang(cut(behind=behind)))
    assert (finding.subject_type, finding.subject) == ("link", "a-b")
    assert finding.summary == "The job hangs in the network: no data passes between a and b"
    told = finding.evidence
    assert (told["class"], told["culprits"], told["condition"]) == ("network", [], "network")
    assert (told["nodes"], told["links"], told["certain"]) == (["a", "b"], [["a", "b"]], False)


def test_how_sure_it_is_of_a_link_does_not_depend_on_what_is_known_of_ranks():
    gpus = {"has_gpus": True}  # for which no campaign counted how often a hang was right
    (known,) = findings(hang(replace(cut(), **gpus)))
    ranks = [status(0, 90.0), status(1, 90.0)]  # no group is recorded, so that no rank seems to wait
    (alone,) = findings(hang(view(ranks, world=TWO_NODES, activity={0: resends(0), 1: resends(1)}, **gpus)))
    assert (alone.subject, alone.confidence) == (known.subject, known.confidence)


def test_of_very_many_links_some_are_listed_and_every_node():
    members = tuple(range(20))
    world = tuple(
        WorldNode(node=f"n{r:02}", node_rank=r, address=f"10.0.0.{r}", peer_port=1, nproc=1) for r in members
    )
    ranks = [status(r, 4.0, group("dp", members, 40, "all_reduce", op_bytes=64)) for r in members]
    activity = {}
    for rank in members:
        stuck = [StuckConnection(local=f"10.0.0.{rank}", remote=f"10.0.0.{r}", resends=5) for r in members]
        activity[rank] = replace(idle(rank), still_ns=4 * S, waits_in="poll", stuck=tuple(stuck))
    (finding,) = findings(hang(view(ranks, world=world, activity=activity)))
    assert finding.summary == "The job hangs in the network: no data passes over 190 links"
    assert len(finding.evidence["nodes"]) == 20
    assert len(finding.evidence["links"]) == 64


def test_a_rank_that_works_behind_a_broken_link_is_left_alone():
    assert findings(hang(cut(behind=True, still_ns=0, io_bytes_s=5e7))) == []


def test_different_operations_at_one_seq_are_a_desync_of_the_minority():
    members = (0, 1, 2)
    same = group("dp", members, 9, "all_reduce", op_bytes=64)
    odd = group("dp", members, 9, "broadcast", op_bytes=64)
    (finding,) = hang(view([status(0, 4.0, same), status(1, 4.0, odd), status(2, 4.0, same)], world=()))
    assert (finding.subject, finding.evidence["class"]) == ("1", "desync")


def test_a_rank_stranded_by_anothers_extra_collective_is_no_second_culprit():
    """Gloo moves what it is given: the extra operation of rank 1 took the turn of the loss of rank 2."""
    everybody = tuple(range(8))

    def member(rank, waits_in):
        world = group("world", everybody, 20, "all_reduce", op_bytes=28 if rank == 1 else 4)
        through = group("world", everybody, 21)
        own = (group("tp", tp_group(rank), 40), group("dp", dp_group(rank), 5))
        if rank in (1, 2):
            return status(rank, 4.0, world, *own)
        tp = group("tp", tp_group(rank), 40, "all_reduce", op_bytes=64) if waits_in == "tp" else own[0]
        dp = group("dp", dp_group(rank), 5, "all_reduce", op_bytes=64) if waits_in == "dp" else own[1]
        pp = group("pp", pp_group(rank), 10, "recv", peer=rank - 4) if waits_in == "pp" else None
        return status(rank, 4.0, through, *(g for g in (tp, dp, pp) if g is not None))

    where = {0: "tp", 3: "tp", 4: "pp", 5: "pp", 6: "dp", 7: "dp"}
    ranks = [member(rank, where.get(rank)) for rank in range(8)]
    assert culprits(hang(view(ranks))) == ["1"]


def test_two_independent_culprits_are_both_named():
    ranks = stuck_job(0)
    ranks[7] = replace(ranks[7], state="stopped", groups=(), last_phase="backward")
    assert culprits(hang(view(ranks))) == ["0", "7"]


@pytest.mark.parametrize("phase", ["checkpoint", "eval", "data", "my_own_phase"])
def test_long_phases_get_the_longer_limit(phase):
    ranks = stuck_job(1, silent_s=10.0, state="running")
    ranks[1] = replace(ranks[1], last_phase=phase)
    assert isinstance(hang(view(ranks))[0], Healthy)
    late = [replace(r, progress_age_ns=70 * S) for r in ranks]
    assert culprits(hang(view(late))) == ["1"]


def test_limits_follow_the_step_time_and_the_first_step():
    config = WatchConfig()
    assert hang_limit_ns(view(stuck_job(1)), config) == 3 * S
    assert hang_limit_ns(view(stuck_job(1), median_step_ns=4 * S), config) == 10 * S
    assert hang_limit_ns(view(stuck_job(1), first_step_done=False), config) == 60 * S


def test_age_of_the_report_counts():
    ranks = stuck_job(1, silent_s=2.0, state="running")
    assert isinstance(hang(view(ranks))[0], Healthy)
    seen = {r.rank: NOW - int(1.5 * S) for r in ranks}
    assert culprits(hang(view(ranks, seen_ns=seen))) == ["1"]


@pytest.mark.parametrize(
    "broken",
    [
        view([]),
        view([status(0, 9.0)], world=()),
        view(stuck_job(2)[:1], world=()),
        view([status(r, 9.0, state="stopped") for r in range(8)]),
        view([status(r, 9.0) for r in range(8)]),
        view([status(r, 9.0, state="zombie") for r in range(8)]),
        view(stuck_job(2), seen_ns={0: NOW - 30 * S}),
        view(stuck_job(2), lost_nodes=("node1",)),
    ],
)
def test_degenerate_views_get_a_verdict(broken):
    verdicts = hang(broken)
    assert verdicts
    assert all(isinstance(v, Inconclusive | Healthy | Finding) for v in verdicts)


@pytest.mark.parametrize(
    ("state", "certain"), [("stopped", True), ("zombie", True), ("running", False), ("sleeping", False)]
)
def test_only_a_rank_that_cannot_move_makes_a_hang_certain(state, certain):
    (finding,) = findings(hang(view(stuck_job(3, silent_s=400, state=state))))
    assert (finding.subject, finding.evidence["certain"]) == ("3", certain)


def test_a_network_that_stands_still_may_recover_and_different_operations_never_do():
    members = (0, 1, 2)
    same = group("dp", members, 9, "all_reduce", op_bytes=64)
    odd = group("dp", members, 9, "broadcast", op_bytes=64)
    (stuck,) = findings(hang(view([status(r, 4.0, same) for r in members], world=())))
    (desync,) = findings(
        hang(view([status(0, 4.0, same), status(1, 4.0, odd), status(2, 4.0, same)], world=()))
    )
    assert (stuck.evidence["class"], stuck.evidence["certain"]) == ("network", False)
    assert (desync.evidence["class"], desync.evidence["certain"]) == ("desync", True)


def test_a_longer_silence_is_never_milder():
    def weight(silent_s: float) -> float:
        return sum(f.confidence for f in findings(hang(view(stuck_job(4, silent_s, "running")))))

    weights = [weight(s) for s in (0.5, 2.0, 3.5, 10.0, 100.0)]
    assert weights == sorted(weights)


def test_a_crash_is_one_of_the_attempt_that_the_hub_watches():
    killed = RankExit(node="node1", ts_ns=NOW, job="gpt", attempt=0, rank=3, pid=1, code=-9, last_lines=())
    earlier = replace(killed, attempt=1)
    (finding,) = findings(crash(view([], exits=(killed,))))
    assert (finding.kind, finding.subject_type, finding.subject) == ("crash", "rank", "3")
    assert isinstance(crash(view([], exits=(earlier,)))[0], Healthy)


def test_where_all_nodes_are_lost_the_incident_sends_nobody_to_a_peer():
    some, every = (crash(view([], lost_nodes=tuple(m.node for m in lost))) for lost in (WORLD[:2], WORLD))
    (incident,) = join(findings(some))
    assert "from a peer's memory where one holds a copy" in incident["suggested_action"]
    (incident,) = join(findings(every))
    assert incident["suggested_action"].startswith("Replace all nodes of the job")
    assert "peer" not in incident["suggested_action"]


def test_a_failed_exit_is_a_crash_and_no_hang():
    killed = RankExit(node="node1", ts_ns=NOW, job="gpt", attempt=0, rank=3, pid=1, code=-9, last_lines=())
    (verdict,) = hang(view(stuck_job(3), exits=(killed,)))
    assert isinstance(verdict, Inconclusive)
    assert not verdict.blind


@pytest.mark.parametrize(("rank", "node"), [(0, "node0"), (3, "node1"), (7, "node3"), (8, "")])
def test_ranks_are_placed_in_the_order_of_node_ranks(rank, node):
    assert replace(view([]), world=WORLD[::-1]).node_of(rank) == node


def test_the_size_of_a_job_without_a_world_is_the_number_of_its_reports():
    assert view([]).size() == 8
    assert view([status(0, 1.0)], world=()).size() == 1


@pytest.mark.parametrize("name", ["stall_s", "stall_steps", "stopped_s", "start_s", "patient_s", "stale_s"])
def test_a_limit_that_is_not_above_zero_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} = 0"):
        WatchConfig(**{name: 0})


def active(rank: int, **fields) -> RankActivity:
    idle = {"cpu_ratio": 0.0, "helper_cpu_ratio": 0.0, "io_bytes_s": 0.0, "still_ns": 9 * S}
    return RankActivity(rank=rank, **(idle | fields))


def stands(rank: int, seconds: int, **fields) -> Posture:
    here = "evaluate (train.py:88)"
    posture = begin(StackSample(rank=rank, at_ns=NOW, frames=(here,), place=here, **fields))
    for second in range(1, seconds + 1):
        posture = posture.then(replace(posture.newest, at_ns=NOW + second * S))
    return posture


@pytest.mark.parametrize("work", [{"io_bytes_s": 5e6}, {"cpu_ratio": 0.9}, {"helper_cpu_ratio": 0.5}])
def test_a_rank_that_works_is_no_hang_and_the_reason_is_given(work):
    ranks = stuck_job(3, silent_s=30, state="running")
    (verdict,) = hang(view(ranks, activity={3: active(3, still_ns=0, **work)}))
    assert isinstance(verdict, Inconclusive)
    assert "rank 3" in verdict.reason


def test_of_two_ranks_at_fault_the_one_that_works_is_left_out():
    ranks = stuck_job(0, state="running")
    ranks[7] = replace(ranks[7], state="stopped", groups=(), last_phase="backward")
    assert culprits(hang(view(ranks))) == ["0", "7"]
    assert culprits(hang(view(ranks, activity={0: active(0, still_ns=0, io_bytes_s=1e6)}))) == ["7"]


@pytest.mark.parametrize(("held_s", "certain"), [(5, False), (20, True)])
def test_a_held_gil_is_named_and_certain_after_its_limit(held_s, certain):
    ranks = stuck_job(3, silent_s=20, state="sleeping")
    known = {"activity": {3: active(3)}, "postures": {3: stands(3, held_s, gil="MainThread")}}
    (finding,) = findings(hang(view(ranks, **known)))
    assert (finding.subject, finding.evidence["condition"]) == ("3", "held_gil")
    assert finding.evidence["certain"] is certain


def early(rank):
    """A rank of a job in its start."""
    return replace(
        rank, last_step=-1, groups=tuple(replace(g, completed=max(1, g.completed)) for g in rank.groups)
    )


def test_a_held_gil_in_the_start_is_named_at_once_where_peers_wait_in_a_collective_and_is_never_certain():
    ranks = [early(rank) for rank in stuck_job(3, silent_s=20, state="sleeping")]
    known = {"activity": {3: active(3)}, "postures": {3: stands(3, 20, gil="MainThread")}}
    (finding,) = findings(hang(view(ranks, first_step_done=False, **known)))
    assert (finding.subject, finding.evidence["condition"]) == ("3", "held_gil")
    assert (finding.evidence["certain"], finding.evidence["starting"]) == (False, True)
    assert finding.evidence["looked_at_ns"] == 60 * S


@pytest.mark.parametrize("change", ["nothing done together", "works", "does nothing"])
def test_other_silences_in_the_start_are_given_their_minute(change):
    ranks = [early(rank) for rank in stuck_job(3, silent_s=20, state="sleeping")]
    gil = "" if change == "does nothing" else "MainThread"
    known = {"activity": {3: active(3)}, "postures": {3: stands(3, 20, gil=gil)}}
    if change == "nothing done together":
        ranks[3] = replace(ranks[3], groups=tuple(replace(g, completed=0) for g in ranks[3].groups))
    if change == "works":
        known["activity"] = {3: active(3, still_ns=0, io_bytes_s=1e6)}
    assert findings(hang(view(ranks, first_step_done=False, **known))) == []


@pytest.mark.parametrize(("turns_s", "named", "certain"), [(2, 0, None), (10, 1, False), (50, 1, True)])
def test_a_loop_is_named_once_readings_agree_and_certain_after_its_limit(turns_s, named, certain):
    ranks = stuck_job(3, silent_s=60, state="running")
    known = {
        "activity": {3: active(3, cpu_ratio=1.0, still_ns=0)},
        "postures": {3: stands(3, turns_s, gil="MainThread", idle_line=True)},
    }
    found = findings(hang(view(ranks, **known)))
    assert [f.evidence["certain"] for f in found] == [certain] * named


@pytest.mark.parametrize(
    ("gpus", "seconds", "named"),
    [(True, 30, []), (True, 70, ["device"]), (False, 70, []), (False, 310, ["spin"])],
)
def test_a_rank_that_waits_for_its_gpu_is_named_after_a_minute(gpus, seconds, named):
    ranks = stuck_job(3, silent_s=400, state="running")
    known = {
        "activity": {3: active(3, cpu_ratio=1.0, still_ns=0)},
        "postures": {3: stands(3, seconds, device_line=True)},
    }
    found = findings(hang(view(ranks, **known, has_gpus=gpus)))
    assert [f.evidence["condition"] for f in found] == named
    assert [f.subject for f in found] == ["3"] * len(named)


def test_a_pause_that_is_usual_at_its_place_is_not_named_again():
    ranks = stuck_job(3, silent_s=80, state="sleeping")
    known = {"activity": {3: active(3, waits_in="sleep")}, "postures": {3: stands(3, 9)}}
    assert culprits(hang(view(ranks, **known))) == ["3"]
    usual = {"evaluate (train.py:88)": 90 * S}
    assert culprits(hang(view(ranks, **known, usual_ns=usual))) == []
    longer = [replace(r, progress_age_ns=120 * S) for r in ranks]
    (finding,) = findings(hang(view(longer, **known, usual_ns=usual)))
    assert finding.evidence["usual_ns"] == 90 * S
    stopped = [replace(r, state="stopped") if r.rank == 3 else r for r in ranks]
    assert culprits(hang(view(stopped, usual_ns=usual))) == ["3"]


@pytest.mark.parametrize(
    ("waits_in", "state", "silent_s", "severity", "says"),
    [
        ("sleep", "sleeping", 20, "warning", "stands, perhaps for a pause, at rank 3"),
        ("sleep", "sleeping", 400, "critical", "hangs at rank 3"),
        ("", "stopped", 20, "critical", "hangs at rank 3"),
    ],
)
def test_what_may_be_a_pause_is_a_warning_that_is_less_sure_until_minutes_have_passed(
    waits_in, state, silent_s, severity, says
):
    ranks = stuck_job(3, silent_s=silent_s, state=state)
    known = {"activity": {3: active(3, waits_in=waits_in)}, "postures": {3: stands(3, 9)}}
    (finding,) = findings(hang(view(ranks, **known)))
    assert (finding.severity, finding.confidence > 0.6) == (severity, severity == "critical")
    assert says in finding.summary


def test_a_job_of_one_rank_waits_for_nobody():
    """On a GPU its own collective is shown as in flight until it looks, however long it reads data."""
    rank = status(0, 700.0, group("world", (0,), 40, "all_reduce", on_device=True), state="sleeping")
    (verdict,) = hang(view([rank], world=(), activity={0: active(0, waits_in="read")}))
    assert isinstance(verdict, Inconclusive)
    assert "no rank waits" in verdict.reason


def test_a_network_through_which_bytes_flow_is_slow_and_no_hang():
    waiting = group("tp", (2, 3), 40, "all_reduce", op_bytes=64)
    ranks = [status(2, 9.0, waiting), status(3, 9.0, waiting)]
    assert findings(hang(view(ranks, world=())))
    spins = {r: active(r, cpu_ratio=1.0, still_ns=0) for r in (2, 3)}
    assert findings(hang(view(ranks, world=(), activity=spins)))
    flows = {2: active(2, io_bytes_s=1e6, still_ns=0)}
    assert not findings(hang(view(ranks, world=(), activity=flows)))


def device_job(silent_s=70.0, op="all_reduce"):
    waiting = group("dp", (2, 3), 40, op, op_bytes=64, on_device=True, timeout_s=1800)
    return [status(2, silent_s, waiting, phase="step"), status(3, silent_s, waiting, phase="step")]


def test_ranks_that_work_on_their_own_after_a_step_on_devices_are_no_hang():
    """What ended on a device is shown as in flight until the rank looks."""
    busy = {r: active(r, cpu_ratio=1.0, still_ns=0) for r in (2, 3)}
    seen = look(view(device_job(), world=(), activity=busy))
    assert not [v for v in seen.verdicts if isinstance(v, Finding)]
    assert seen.suspects == (2, 3)
    moves = {r: stands(r, 1) for r in (2, 3)}
    assert not findings(hang(view(device_job(), world=(), activity=busy, postures=moves)))


def test_ranks_that_wait_for_something_else_than_a_device_are_given_time():
    waits = {r: active(r, waits_in="poll") for r in (2, 3)}
    (finding,) = findings(hang(view(device_job(), world=(), activity=waits)))
    assert (finding.evidence["condition"], finding.evidence["timeout_chosen"]) == ("waits", True)
    assert "network" not in finding.summary


def test_ranks_that_turn_in_a_wait_for_their_device_are_the_network():
    """Threads of the communication library turn beside the main thread."""
    spin = {r: active(r, cpu_ratio=2.0, still_ns=0) for r in (2, 3)}
    still = {r: stands(r, 9) for r in (2, 3)}
    (finding,) = findings(hang(view(device_job(), world=(), activity=spin, postures=still)))
    assert (finding.evidence["class"], finding.evidence["condition"]) == ("network", "network")


def test_no_rank_is_blamed_because_it_looked_at_its_device_earlier():
    """Each shows the oldest operation that it has not seen the end of. The end of all may be the same."""

    def rank(number, done, enqueued=14):
        cell = GroupStatus(
            group="dp", members=(0, 1, 2, 3), enqueued=enqueued, completed=done, op="all_gather",
            op_seq=done + 1, on_device=True,
        )  # fmt: skip
        return status(number, 9.0, cell, phase="step")

    ranks = [rank(0, 8), rank(1, 12), rank(2, 9), rank(3, 8)]
    (finding,) = findings(hang(view(ranks, world=())))
    assert (finding.subject_type, finding.evidence["culprits"]) == ("group", ())


def test_operations_that_can_never_meet_are_named_before_a_slow_step_is_over():
    same = group("dp", (0, 1, 2), 9, "all_reduce", op_bytes=64)
    odd = group("dp", (0, 1, 2), 9, "broadcast", op_bytes=64)
    ranks = [status(0, 2.5, same), status(1, 2.5, odd), status(2, 2.5, same)]
    slow = {"world": (), "median_step_ns": 60 * S}
    (finding,) = findings(hang(view(ranks, **slow)))
    assert (finding.evidence["condition"], finding.evidence["certain"]) == ("mismatch", True)
    early = [replace(r, progress_age_ns=S) for r in ranks]
    assert not findings(hang(view(early, **slow)))


def saving_job(silent_s: float) -> list[RankStatus]:
    """A thread of each rank saves by gloo in the group in which the main threads train by NCCL."""

    def member(rank: int, op: str, enqueued: int) -> RankStatus:
        cell = GroupStatus(
            group="0", members=tuple(range(8)), enqueued=enqueued, completed=8, op=op, op_seq=9,
            on_device=True,
        )  # fmt: skip
        return status(rank, silent_s, cell, phase="step")

    return [member(0, "all_gather", 12), *(member(rank, "all_reduce", 11) for rank in range(1, 8))]


def test_operations_that_may_have_ended_on_devices_are_no_proof_of_a_mismatch():
    assert isinstance(hang(view(saving_job(2.5)))[0], Healthy)
    (finding,) = findings(hang(view(saving_job(9.0))))
    assert (finding.subject, finding.evidence["class"]) == ("0", "desync")
    assert (finding.evidence["condition"], finding.evidence["certain"]) == ("network", False)


def test_ranks_that_save_beside_their_devices_are_no_hang():
    seen = look(view(saving_job(9.0), activity={3: active(3, cpu_ratio=1.0, still_ns=0)}))
    assert not findings(seen.verdicts)
    assert seen.suspects == tuple(range(8))


def test_a_circle_of_waits_is_certain_only_where_every_host_is_known_to_wait():
    pairs = {"a": (0, 1), "b": (1, 0)}

    def member(rank: int, own: str, other: str, phase: str) -> RankStatus:
        waits = group(own, tuple(sorted(pairs[own])), 4, "all_reduce")
        return status(rank, 5.0, waits, group(other, tuple(sorted(pairs[other])), 4), phase=phase)

    blocked = [member(0, "a", "b", "all_reduce"), member(1, "b", "a", "all_reduce")]
    elsewhere = [blocked[0], replace(blocked[1], last_phase="")]
    for ranks, certain in ((blocked, True), (elsewhere, False)):
        found = findings(hang(view(ranks, world=())))
        assert {f.evidence["class"] for f in found} == {"desync"}
        assert {f.evidence["certain"] for f in found} == {certain}


def test_the_timeout_of_the_group_that_stands_is_part_of_the_evidence():
    """Others may have operations in flight for as long as they like, such as a receive posted ahead."""
    ranks = [
        replace(r, groups=tuple(replace(g, timeout_s=1800 if "tp" in g.group else 600) for g in r.groups))
        for r in stuck_job(3, state="running")
    ]
    (finding,) = findings(hang(view(ranks)))
    assert finding.evidence["timeout_ns"] == 1800 * S
    assert not finding.evidence["timeout_chosen"]
    (unknown,) = findings(hang(view(stuck_job(3, state="running"))))
    assert unknown.evidence["timeout_ns"] == 0


def test_suspects_are_ranks_whose_stack_would_tell_whether_they_work():
    ranks = stuck_job(3, silent_s=2.0, state="running")
    assert look(view(ranks)).suspects == (3,)
    assert look(view(ranks, activity={3: active(3, io_bytes_s=1e6)})).suspects == ()
    assert look(view(stuck_job(3, silent_s=4.0))).suspects == ()
    assert look(view(stuck_job(3, silent_s=0.5, state="running"))).suspects == ()


def hung_fleet(nodes):
    """What a hub knows of a simulated fleet in which rank 5 is stopped."""
    fleet = LiveFleet(nodes=nodes, tp=8, pp=4)
    job = LiveJob(fleet, parse_plan({"fault": [{"kind": "hung_rank", "at_s": 1, "rank": 5}]}, fleet))
    launch(job, 0.0)
    run_until(job, 3.0, 20.0)
    ranks = tuple(status for heartbeat in say(job, 20.0) for status in heartbeat.ranks)
    return JobView(job="j", attempt=0, now_ns=20 * S, ranks=ranks, first_step_done=True)


def test_the_time_to_name_a_hang_grows_with_the_ranks_and_not_with_their_square(monkeypatch):
    hashed = []
    monkeypatch.setattr(HashedGroupKey, "__hash__", lambda key: hashed.append(1) or key._hash)
    views = {nodes: hung_fleet(nodes) for nodes in (8, 32)}
    counts = {}
    for nodes, view in views.items():
        hashed.clear()
        (finding,) = hang(view)
        assert (finding.subject, len(finding.evidence["victims"])) == ("5", 8 * nodes - 1)
        counts[nodes] = len(hashed)
    assert counts[32] < 5 * counts[8]


def test_of_very_many_silent_ranks_the_first_are_listed():
    seen = hung_fleet(8)
    seen_ns = {status.rank: 0 for status in seen.ranks}
    (verdict,) = hang(replace(seen, seen_ns=seen_ns))
    assert verdict.reason.startswith("no report from 64 ranks, first [0, 1, 2,")
    assert len(verdict.reason) < 120


@pytest.mark.parametrize("still_s", [0, 60], ids=["they work", "they stand"])
def test_thousands_of_late_ranks_hold_up_no_look(still_s):
    """As in a large start: most ranks wait, and very many are late."""
    everybody = tuple(range(10_000))
    late = [status(r, 80.0, group("world", everybody, 5), phase="") for r in range(2_000)]
    own = group("world", everybody, 5, "all_reduce", op_bytes=64)
    waits = [status(r, 80.0, own) for r in range(2_000, 10_000)]
    world = tuple(
        WorldNode(node=f"n{i}", node_rank=i, address="a", peer_port=1, nproc=8) for i in range(1_250)
    )
    stands = {r: replace(idle(r), still_ns=still_s * S) for r in everybody}
    job = view([*late, *waits], world=world, activity=stands)
    began = time.perf_counter()
    verdicts = hang(job)
    took_s = time.perf_counter() - began
    told = [f.evidence for f in findings(verdicts)]
    assert len(told) == (16 if still_s else 0)
    for evidence in told:
        assert (evidence["culprits"], evidence["culprits_in_all"]) == (tuple(range(512)), 2_000)
        assert (len(evidence["victims"]), evidence["victims_in_all"]) == (512, 8_000)
        assert len(evidence["nodes"]) == 250
        assert (len(evidence["groups"][0]["waiting"]), evidence["groups"][0]["waiting_in_all"]) == (64, 8_000)
        assert len(json.dumps(evidence)) < 20_000  # it is kept of each finding, and sent
    assert took_s < 5  # it grew with the square of those that are late


@pytest.mark.parametrize("renamed", [False, True], ids=["known by itself", "numbered anew"])
def test_a_training_that_has_ended_is_no_culprit_of_another_in_the_same_launch(renamed):
    """Each has a world of its own. A script may have overwritten what the launcher says of the job's."""

    def world(rank, *of):
        return group(
            "world", (0, 1, 2, 3) if renamed else (rank,), *of, **({"op_bytes": 64} if of[1:] else {})
        )

    ended = [status(r, 60.0, world(r, 10), state="gone", phase="") for r in range(4)]
    saves = status(4, 4.0, world(4, 20), phase="checkpoint")
    waits = [status(r, 4.0, world(r, 20, "all_reduce")) for r in (5, 6, 7)]
    assert not findings(hang(view([*ended, saves, *waits])))
