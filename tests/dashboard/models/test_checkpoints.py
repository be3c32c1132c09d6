"""Where the state is safe, what a failure would cost, and the stages of each step."""

from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.dashboard.models.checkpoints import (
    OWN,
    TIERS,
    Safe,
    checkpoint_lines,
    costs,
    headline,
    own_file,
    safe_steps,
)


def safe(tier: str, step: int) -> Safe:
    return Safe(tier=tier, step=step, bytes=1, copies=1.0, ts_ns=0)


def test_each_failure_resumes_from_the_newest_step_that_survives_it():
    held = [safe("memory", 41), safe("peer", 40), safe("storage", 30)]
    rank, node, group = costs(held, last_step=42, step_ns=10, recovery_ns=[5, 9, 7])
    assert [(c.step, c.tier, c.lost_steps, c.lost_ns) for c in (rank, node, group)] == [
        (41, "memory", 1, 10),
        (40, "peer", 2, 20),
        (30, "storage", 12, 120),
    ]
    assert node.pause_ns == 7
    assert "2 steps" in headline(held, [rank, node, group])
    assert "from step 40" in headline(held, [rank, node, group])


def test_where_nothing_is_safe_it_is_said():
    assert "starts the job from its first step" in headline([], costs([], last_step=5, step_ns=1))
    memory = [safe("memory", 5)]
    found = costs(memory, last_step=5, step_ns=1)
    assert found[1].step == -1
    assert found[1].pause_ns is None
    assert "No replica" in headline(memory, found)


@given(st.dictionaries(st.sampled_from(TIERS), st.integers(0, 50)), st.integers(0, 60))
def test_a_worse_failure_is_never_cheaper(steps, last):
    found = costs([safe(t, s) for t, s in steps.items()], last_step=last, step_ns=3)
    lost = [c.lost_steps for c in found]
    assert lost == sorted(lost)


def test_a_script_that_saves_by_itself_goes_on_from_its_own_file_whatever_fails():
    own = {"step": 30, "bytes": 8, "written_ns": 5, "complete": True}
    held = own_file(own)
    found = costs(held, last_step=42, step_ns=10)
    assert {(c.step, c.tier, c.lost_steps) for c in found} == {(30, OWN, 12)}
    assert headline(held, found).endswith("would resume from step 30 in the script's own file.")
    assert own_file(own | {"complete": False}) == own_file(None) == []


def test_tiers_are_in_the_order_of_a_restore():
    rows = [{"tier": t, "step": 1, "bytes": 8, "copies": 16, "ranks": 8, "ts_ns": 3} for t in reversed(TIERS)]
    assert [s.tier for s in safe_steps(rows)] == list(TIERS)
    assert safe_steps(rows)[0].copies == 2.0


def test_checkpoints_gather_the_stages_of_a_step():
    row = {
        "attempt": 0,
        "step": 4,
        "stage": "copy",
        "tier": "memory",
        "ranks": 8,
        "bytes": 7,
        "longest_ns": 5,
        "ts_ns": 1,
    }
    lines = checkpoint_lines(
        [row, {**row, "stage": "persist", "tier": "storage", "ts_ns": 3}, {**row, "step": 5}]
    )
    assert [line["step"] for line in lines] == [5, 4]
    assert lines[1]["stages"] == {"copy (memory)": (8, 5), "persist (storage)": (8, 5)}
    assert lines[1]["ts_ns"] == 3
