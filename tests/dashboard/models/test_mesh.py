"""The mesh of a large job as a grid of blocks."""

import json

from pulsetrain.dashboard.models.attribution import attribute
from pulsetrain.dashboard.models.charts import LIGHT
from pulsetrain.dashboard.models.mesh import blocks, grid_chart, selected, tally


def row(stage, block, **states):
    found = {"no_data": 0, "stopped": 0, "gone": 0, **states}
    return {
        "pp": stage,
        "block": block,
        "first_dp": 8 * block,
        "last_dp": 8 * block + 7,
        "ranks": 64,
        **found,
    }


def finding(subject, kind="hang", victims=()):
    return {
        "kind": kind, "severity": "critical", "subject_type": "rank", "subject": str(subject), "summary": "s",
        "evidence": json.dumps({"victims": list(victims)}),
    }  # fmt: skip


BLAMED = [{"rank": 371, "node": "n46", "pp": 0, "dp": 11, "state": "running"}]
ROWS = [row(stage, block) for stage in range(2) for block in range(4)]


def states(shown):
    return {(block.stage, block.place): block.state for block in shown}


def test_the_block_of_the_culprit_is_marked_and_named_and_no_other():
    shown = blocks(ROWS, BLAMED, attribute([finding(371)]))
    assert {at for at, state in states(shown).items() if state != "running"} == {(0, 1)}
    assert next(block.named for block in shown if block.state == "culprit") == "rank 371"


def test_a_hang_of_the_whole_job_shows_who_waits():
    blame = attribute([finding(371, victims=[rank for rank in range(512) if rank != 371])])
    found = states(blocks(ROWS, BLAMED, blame))
    assert found.pop((0, 1)) == "culprit"
    assert set(found.values()) == {"victim"}
    assert tally(ROWS, blame, BLAMED) == "1 culprit, 511 waits"


def test_victims_that_a_finding_counts_and_does_not_list_wait_too():
    found = finding(371, victims=range(200))
    found["evidence"] = json.dumps({"victims": list(range(200)), "victims_in_all": 511})
    blame = attribute([found])
    assert set(states(blocks(ROWS, BLAMED, blame)).values()) == {"culprit", "victim"}
    assert tally(ROWS, blame, BLAMED) == "1 culprit, 511 waits"


def test_silence_is_no_data_and_a_stopped_rank_outweighs_it():
    shown = blocks([row(0, 0, no_data=3), row(0, 1, no_data=1, stopped=1)], [], attribute([]))
    assert states(shown) == {(0, 0): "no_data", (0, 1): "stopped"}
    assert tally([row(0, 0, no_data=3)], attribute([]), []) == "3 no data, 61 running"


def test_the_chart_is_small_and_a_click_is_a_block():
    rows = [row(stage, block) for stage in range(16) for block in range(64)]
    shown = blocks(rows, BLAMED, attribute([finding(371)]))
    drawn = grid_chart(shown, LIGHT)
    assert len(json.dumps(drawn.option)) < 100_000
    named = [series for series in drawn.option["series"] if series["label"]["show"]]
    assert [point[5] for series in named for point in series["data"]] == ["rank 371"]
    assert selected(shown, [{"series_id": "culprit", "data_indices": [0]}]).dps == (8, 15)
    assert selected(shown, [{"series_id": "culprit", "data_indices": [7]}]) is None
    assert selected(shown, [{"series_id": "gone", "data_indices": [0]}]) is None
    assert selected(shown, []) is None
