"""The page Topology."""

import time

import pytest


def row(rank, **values):
    return {
        "attempt": 1, "rank": rank, "local_rank": rank % 2, "node": f"node-{rank // 2}", "ip": "10.0.0.1",
        "switch": "", "tp": rank % 2, "pp": rank // 2, "dp": 0, "cp": 0, "ep": 0, **values,
    }  # fmt: skip


def heartbeat():
    return {
        "state": "running", "beat_attempt": 1, "beat_state": "running", "last_step": 119,
        "last_phase": "all_reduce", "phase_age_ns": 7 * 10**9, "ts_ns": time.time_ns(),
    }  # fmt: skip


FINDING = {
    "kind": "hang", "severity": "critical", "subject_type": "rank", "subject": "1", "summary": "It <hangs>.",
    "evidence": '{"victims": [0]}',
}  # fmt: skip


@pytest.fixture
def mesh(source):
    source.stored |= {
        "mesh_ranks": [row(rank, ranks_in_all=4, **heartbeat()) for rank in range(3)]
        + [row(3, ranks_in_all=4, ts_ns=0, state="no_data")],
    }
    source.answers["status"]["jobs"][0]["findings"] = [FINDING]
    return source


def test_the_mesh_stands_beside_a_table_with_the_culprit_first(draw, mesh):
    shown = draw("topology")
    assert "1 culprit, 1 waits, 1 no data, 1 running. It <hangs>." in " ".join(shown.text.split())
    assert [r[0] for r in shown.rows()] == ["1", "0", "3", "2"]
    assert shown.rows()[0][2:] == ["node-0", "1", "0", "0", "all_reduce for 7.00 s", "119"]
    assert len(shown.app.get("plotly_chart")) == 1


def test_a_mesh_that_nobody_knows_is_said(draw, mesh):
    assert "mesh is not known" not in draw("topology").text
    mesh.answers["status"]["jobs"][0]["instrumentation"] = {"mesh": "unknown: ranks send to each other"}
    assert "mesh is not known: ranks send to each other" in draw("topology").text


def test_the_table_alone_has_all_columns(draw, mesh):
    shown = draw("topology", show="table")
    assert [r[0] for r in shown.rows()] == ["1", "0", "3", "2"]
    assert len(shown.rows()[0]) == 14
    assert not shown.app.get("plotly_chart")


def test_ranks_without_coordinates_are_a_table(draw, mesh):
    mesh.stored["mesh_ranks"] = [row(0, tp=-1, ranks_in_all=1, ts_ns=0)]
    shown = draw("topology")
    assert len(shown.rows()) == 1
    assert not shown.app.get("plotly_chart")


def test_nothing_is_said_of_ranks_that_are_unknown(draw, source):
    assert "No data: no rank of this job has reported its mesh coordinates." in draw("topology").text


BLOCK = {"ranks": 512, "no_data": 0, "stopped": 0, "gone": 0}


@pytest.fixture
def fleet(mesh):
    mesh.stored["mesh_blocks"] = [
        {
            **BLOCK,
            "pp": stage,
            "block": block,
            "first_dp": 8 * block,
            "last_dp": 8 * block + 7,
            "first_rank": 0,
        }
        for stage in range(2)
        for block in range(3)
    ]
    return mesh


def test_a_large_job_is_a_grid_of_blocks_with_the_culprit_named(draw, fleet):
    shown = draw("topology")
    text = " ".join(shown.text.split())
    assert "1 culprit, 1 waits, 3,070 running. It <hangs>. Click a block to see its ranks." in text
    assert len(shown.app.get("plotly_chart")) == 1
    assert shown.rows()[0][0] == "1"


def test_a_block_is_shown_rank_by_rank(draw, fleet):
    assert "Click a block" not in draw("topology", block="0/0-7").text
    assert "block = 'x'" in draw("topology", block="x").app.warning[0].value
