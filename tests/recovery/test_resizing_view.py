"""What the status shows of a job's size."""

from pulsetrain.recovery import faults
from pulsetrain.recovery.nodes import NodeState
from pulsetrain.recovery.resizing import Resizing
from pulsetrain.recovery.resizing_view import resizing_row
from pulsetrain.recovery.transitions import Phase
from pulsetrain.recovery.world_sizes import WorldSizes
from tests.recovery.builders import S, job_snapshot, node_snapshot, status

ELASTIC = Resizing(sizes=WorldSizes(least=1, most=2), size=2)


def test_a_job_of_a_fixed_size_has_none():
    assert resizing_row(job_snapshot()) is None
    assert resizing_row(job_snapshot(resizing=Resizing.of(WorldSizes(least=2, most=2)))) is None


def test_a_running_job_says_its_size_and_the_allowed_ones():
    row = resizing_row(job_snapshot(resizing=ELASTIC))
    assert (row["nodes"], row["least"], row["most"], row["missing_nodes"]) == (2, 1, 2, 0)
    assert row["waiting_gpu_s"] == 0.0


def test_a_waiting_job_says_what_waiting_and_shrinking_cost():
    lost = node_snapshot("b", state=NodeState.LOST, connected=False)
    fault = faults.node_lost("b", "gone", 0, 996 * S)
    past = {"total_ns": 5 * S}
    job = job_snapshot(
        phase=Phase.WAITING, fault=fault, history=(past,), resizing=ELASTIC,
        nodes=(node_snapshot("a", status(0), status(1)), lost),
    )  # fmt: skip
    row = resizing_row(job)
    assert (row["next_nodes"], row["waited_s"], row["waiting_gpu_s"], row["shrinking_gpu_s"]) == (
        1,
        4.0,
        8.0,
        20.0,
    )
