"""Who waits for a shared device is not to blame for a hang."""

from pulsetrain.analytics.hangs.device_waits import without_waiting
from pulsetrain.analytics.hangs.hang import HangDiagnosis
from pulsetrain.analytics.hangs.job_view import JobView
from pulsetrain.analytics.watch import hang
from pulsetrain.protocol.messages import GroupStatus, RankStatus

FOUND = HangDiagnosis(verdict="rank", culprits=(1, 2), victims=(0,), confidence=0.9, reason="behind")


def test_only_the_rank_that_has_the_device_is_blamed():
    found = without_waiting(FOUND, {2, 3})
    assert (found.culprits, found.victims) == ((1,), (0, 2))
    assert "1 of them only wait for a device" in found.reason


def test_where_nobody_else_is_at_fault_nothing_changes():
    assert without_waiting(FOUND, {1, 2}) is FOUND
    assert without_waiting(FOUND, set()) is FOUND


def status(rank, phase, *, enqueued):
    group = GroupStatus(
        group="world", members=(0, 1, 2, 3), enqueued=enqueued, completed=7,
        **({"op": "all_reduce", "op_seq": 8, "op_bytes": 4} if enqueued == 8 else {}),
    )  # fmt: skip
    return RankStatus(
        rank=rank, local_rank=rank, pid=rank + 1, state="sleeping", last_step=5, last_phase=phase,
        phase_age_ns=600_000_000_000, progress=9, progress_age_ns=600_000_000_000, groups=(group,),
    )  # fmt: skip


def test_a_hang_of_four_ranks_on_one_device_names_its_holder_alone():
    ranks = (
        status(0, "all_reduce", enqueued=8),
        status(1, "forward", enqueued=7),
        status(2, "device_wait", enqueued=7),
        status(3, "device_wait", enqueued=7),
    )
    view = JobView(job="j", attempt=0, now_ns=0, ranks=ranks, first_step_done=True)
    assert [finding.subject for finding in hang(view)] == ["1"]
