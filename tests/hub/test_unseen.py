"""What a healthy job's summary must not claim."""

import pytest

from pulsetrain.analytics.verdict import Failed, Healthy, Inconclusive
from pulsetrain.hub.unseen import unseen


def blind(name, why="no report", *, blind=True):
    return Inconclusive(analyzer=name, reason=why, blind=blind)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], ""),
        ([Healthy(analyzer="hang"), blind("straggler"), blind("mfu")], ""),
        ([blind("hang", blind=False), blind("straggler")], ""),
        (
            [blind("hang"), blind("straggler", "no spans")],
            "whether it hangs or a rank is slow (no report; no spans)",
        ),
        (
            [Failed(analyzer=name, error="x") for name in "abcde"],
            "a failed (x); b failed (x); c failed (x); 2 more failed",
        ),
    ],
)
def test_blind_and_broken_detectors(verdicts, said):
    assert unseen(verdicts) == said


def test_a_loop_of_the_hub_that_is_stuck_answers_nothing():
    def row(name, process="hub", *, stale=True):
        return {"process": process, "loop": name, "stale": stale}

    rows = [row("live watch"), row("store analysis", stale=False), row("live watch", "agent")]
    assert unseen([], rows) == "whether it hangs"
    assert unseen([], rows[1:]) == ""
    assert unseen([], [row("store analysis")]) == "whether a rank or machine is slow or broken"
