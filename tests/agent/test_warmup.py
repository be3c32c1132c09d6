"""The stages from launch to the first step."""

from pulsetrain.agent.warmup import Warmup
from pulsetrain.protocol.messages import GroupStatus, OwnCheckpoint, RankStatus

MS = 1_000_000


def _rank(rank, *, last_step=-1, alive=False, grouped=False, **changes):
    group = GroupStatus(group="world", members=(0, 1), enqueued=1, completed=1)
    return RankStatus(
        rank=rank,
        local_rank=rank,
        pid=10 + rank,
        state="running",
        last_step=last_step,
        last_phase="",
        phase_age_ns=0,
        progress=0,
        progress_age_ns=5 if alive else 0,
        groups=(group,) if grouped else (),
        **changes,
    )


def _warmup(restore_step=-1):
    return Warmup(node="a", attempt=3, restore_step=restore_step, began_ns=0)


def test_stages_are_those_of_the_slowest_rank():
    warmup = _warmup()
    assert warmup.observe({0: _rank(0, alive=True), 1: _rank(1)}, 100 * MS) is None
    assert warmup.observe({0: _rank(0, alive=True, grouped=True), 1: _rank(1, alive=True)}, 150 * MS) is None
    both = {r: _rank(r, alive=True, grouped=True) for r in (0, 1)}
    assert warmup.observe(both, 400 * MS) is None
    done = {r: _rank(r, alive=True, grouped=True, last_step=0) for r in (0, 1)}
    report = warmup.observe(done, 900 * MS)
    assert report is not None
    assert (report.node, report.attempt, report.step) == ("a", 3, 0)
    assert report.stages_ns == {"spawn": 150 * MS, "init": 250 * MS, "step": 750 * MS}


def test_the_restored_step_is_not_a_first_step():
    warmup = _warmup(restore_step=7)
    restored = {0: _rank(0, alive=True, grouped=True, last_step=7)}
    assert warmup.observe(restored, MS) is None
    report = warmup.observe({0: _rank(0, alive=True, grouped=True, last_step=8)}, 2 * MS)
    assert report is not None
    assert report.step == 8


def test_no_ranks_have_no_first_step():
    assert _warmup().observe({}, MS) is None


def test_a_script_that_goes_on_from_its_own_file_has_not_stepped_yet():
    loaded = (OwnCheckpoint(step=20, bytes=1, path="/c/20.pt", written_ns=1),)
    warmup = _warmup()
    read = _rank(0, alive=True, grouped=True, last_step=20, resumed_step=20, loaded=loaded)
    assert warmup.observe({0: read}, 100 * MS) is None
    stepped = _rank(0, alive=True, grouped=True, last_step=21, resumed_step=20, loaded=loaded)
    report = warmup.observe({0: stepped}, 200 * MS)
    assert report is not None
    assert (report.step, report.resumed_step, report.resumed_path) == (21, 20, "/c/20.pt")
