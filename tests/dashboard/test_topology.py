"""The page Topology."""

import time

import pytest

from pulsetrain.dashboard import topology
from tests.dashboard.conftest import FakeSource


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


def test_a_rank_whose_agent_reports_each_half_minute_is_running_in_between(draw, mesh):
    mesh.stored["mesh_ranks"][2]["ts_ns"] -= 40 * 10**9
    assert "1 culprit, 1 waits, 2 no data." in " ".join(draw("topology").text.split())
    mesh.answers["status"]["jobs"][0]["usual_silence_s"] = 75.0
    assert "1 culprit, 1 waits, 1 no data, 1 running." in " ".join(draw("topology").text.split())


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
    assert len(shown.app.get("echarts_chart")) == 1
    assert shown.rows()[0][0] == "1"


def test_the_blocks_are_a_table_too_with_the_most_urgent_first(draw, fleet):
    shown = draw("topology")
    blocks = shown.rows(1)
    assert len(blocks) == 6
    assert blocks[0][:4] == ["0", "0-7", "◆ culprit", "512"]
    assert 'href="topology?job=gpt&amp;block=1%2F8-15"' in shown.html


def test_a_block_is_shown_rank_by_rank(draw, fleet):
    assert "Click a block" not in draw("topology", block="0/0-7").text
    assert "block = 'x'" in draw("topology", block="x").app.warning[0].value


PLACE = {"attempt": 1, "rank": 1, "local_rank": 1, "node": "node-0", "ip": "10.0.0.1", "switch": "", "tp": 1,
         "pp": 0, "dp": 0, "cp": 0, "ep": 0}  # fmt: skip
WAITING = {
    "rank": 1, "node": "node-0", "state": "running", "groups": [
        {"group": "mesh_tp:1", "size": 2, "runs": [[0, 1, 2]], "enqueued": 8, "completed": 7,
         "op": "all_reduce", "op_seq": 8, "op_bytes": 1024, "op_since_ns": 1, "peer": -1, "timeout_s": 0},
    ],
}  # fmt: skip


@pytest.fixture
def panel(mesh):
    """What is known of rank 1, which waits for rank 0."""
    mesh.answers["rank"] = {**WAITING, "heard_ns": time.time_ns()}
    line = {"ts_ns": 10**18, "rank": 1, "node": "node-0", "source": "stderr", "severity": "error"}
    mesh.stored |= {
        "topology": [PLACE],
        "jobs": [{"job": "gpt", "last_step": 119, "last_ns": 10**18}],
        "mesh_peers": [
            {**PLACE, "axis": "tp", "rank": 0, "tp": 0, "peers_in_all": 1},
            {**PLACE, "axis": "pp", "rank": 3, "pp": 1, "peers_in_all": 1},
        ],
        "log_lines": [{**line, "message": "RuntimeError: <boom>"}],
    }
    return mesh


def test_a_chosen_rank_has_its_panel(draw, panel):
    shown = draw("topology", rank="1")
    text = " ".join(shown.text.split())
    assert "Rank 1 ◆ culprit all about it · timeline · its lines · close" in text
    assert "all_reduce in group mesh_tp:1, seq 8, 1.00 KiB, for" in text
    peers, groups, lines = (shown.rows(table) for table in range(3))
    assert peers == [
        ["previous stage", "none", "it is the first"],
        ["next stage", "3", "activations to it, gradients from it"],
        ["tensor parallel", "0", "partial results of layers, both ways"],
    ]
    assert groups == [["mesh_tp:1", "tp: tensor parallel", "2", "0-1", "8 begun, 7 complete"]]
    assert lines[0][2:] == ["1", "RuntimeError: <boom>"]
    assert len(shown.rows(3)) == 4
    assert "rank 1, chosen" in shown.app.get("plotly_chart")[0].proto.spec


def test_links_keep_what_the_page_shows(draw, panel):
    shown = draw("topology", rank="1", show="table", find="node")
    assert 'href="topology?job=gpt&amp;show=table&amp;find=node&amp;rank=3"' in shown.html
    assert 'href="topology?job=gpt&amp;show=table&amp;find=node">close' in shown.html


def test_without_a_chosen_rank_nothing_more_is_asked(draw, panel):
    draw("topology")
    assert {view for view, *_ in panel.asked} == {"mesh_ranks", "mesh_blocks"}


def test_questions_about_a_rank_are_about_that_rank_alone(draw, panel):
    draw("topology", rank="1")
    of_rank = {"topology": "rank", "rank_states": "rank", "mesh_peers": "rank", "spans": "ranks"}
    asked = {view: (args, dict(options)) for view, args, options in panel.asked}
    assert asked["rank"][0] == ("gpt", 1)
    for view, name in of_rank.items():
        assert asked[view][1][name] in (1, (1,))
    wanted = [args[1] for view, args, _ in panel.asked if view == "log_lines"]
    assert {(w.ranks, w.node, w.severities) for w in wanted} == {
        ((1,), "node-0", ("error", "critical")), ((), "node-0", ("error", "critical")),
    }  # fmt: skip


def test_a_job_that_no_hub_runs_shows_what_is_on_record(draw, panel):
    panel.answers["status"]["jobs"] = []
    panel.stored["spans"] = [
        {"attempt": 1, "phase": "all_reduce", "category": "communication", "group": "mesh_tp:1", "seq": 8,
         "bytes": 0, "peer": -1, "open": True, "start_ns": 10**18, "duration_ns": 10**9}
    ]  # fmt: skip
    text = " ".join(draw("topology", rank="1").text.split())
    assert "Not ended when it was recorded last: all_reduce in group mesh_tp:1, seq 8" in text
    assert "0-1 by the mesh" in text
    assert "rank" not in {view for view, *_ in panel.asked}


def test_what_is_not_known_of_a_rank_is_said(draw, panel):
    panel.answers |= {"rank": {}}
    panel.answers["status"]["jobs"][0]["instrumentation"] = {"mesh": "unknown: ranks send to each other"}
    panel.stored["log_lines"] = []
    text = " ".join(draw("topology", rank="1").text.split())
    assert "Not known: the hub does not say what this rank has in flight." in text
    assert "Not known: neither the mesh nor a send or recv names a peer." in text
    assert "Not known: no process group of this rank is on record." in text
    assert "None is on record." in text
    assert "mesh_peers" not in {view for view, *_ in panel.asked}


def test_a_rank_that_is_not_there_and_one_that_is_no_number_are_said(draw, panel):
    panel.stored["topology"] = []
    assert "No data: rank 7 of this job has not reported where it is." in draw("topology", rank="7").text
    assert "rank = 'x'" in draw("topology", rank="x").app.warning[0].value


def test_the_grid_of_a_large_job_has_the_panel_beside_it(draw, panel, fleet):
    shown = draw("topology", rank="1")
    assert "Click a block to see its ranks." in shown.text
    assert "all_reduce in group mesh_tp:1" in shown.text


def test_the_panels_first_questions_are_asked_ahead(draw, panel):
    before = FakeSource(stored=panel.stored, answers=panel.answers)
    for question in topology.ahead(before, "gpt", {"rank": "1"}):
        question()
    draw("topology", rank="1")
    assert {"rank", "topology"} <= {view for view, *_ in before.asked}
    assert set(before.asked) <= set(panel.asked)
    assert len(topology.ahead(before, "gpt", {"rank": "x"})) == len(topology.ahead(before, "gpt", {}))
