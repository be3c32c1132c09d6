"""The pages Logs, Metrics, Events, Rank and Node."""

import pytest

LINE = {
    "ts_ns": 10**18, "node": "node-2", "rank": 5, "attempt": 1, "source": "stderr", "severity": "error",
    "message": "<CUDA> error", "rule": "cuda", "lines_in_all": 7,
}  # fmt: skip
JOBS = [{"job": "gpt", "ranks": 8, "first_step": 0, "last_step": 119, "attempts": 1, "last_ns": 10**18}]
PLACE = {
    "attempt": 1, "rank": 5, "local_rank": 1, "node": "node-2", "ip": "10.0.0.1", "switch": "tor-7", "tp": 1,
    "pp": 0, "dp": 1, "cp": 0, "ep": 0,
}  # fmt: skip
FINDING = {
    "severity": "critical", "kind": "hang", "subject_type": "rank", "subject": "5", "summary": "It <hangs>.",
    "confidence": 0.97, "ts_ns": 10**18, "times": 1, "evidence": "{}",
}  # fmt: skip
WORK = {"rank": 5, "step": 9, "work_ns": 150, "usual_ns": 100, "low_ns": 98, "high_ns": 103, "cohort": 4}


@pytest.fixture
def known(source):
    source.stored |= {
        "jobs": JOBS, "log_lines": [LINE], "topology": [PLACE], "findings": [FINDING],
        "work_beside_cohort": [WORK],
        "metric_names": [{"name": "net_rx_bytes", "nodes": 2, "devices": 2, "samples": 600, "counted_ns": 0}],
        "metric_series": [{"node": "a", "device": "", "ts_ns": 1, "value": 2.0, "series_in_all": 9}],
        "node_counters": [{"name": "net_rx_bytes", "device": "", "value": 2048.0, "ts_ns": 10**18}],
        "event_kinds": [{"kind": "evict", "times": 2}],
        "event_lines": [
            {"ts_ns": 1, "kind": "evict", "actor": "ann", "node": "node-2", "rank": -1, "attempt": 1,
             "detail": '{"reason": "fan <1>"}', "events_in_all": 2},
        ],
    }  # fmt: skip
    source.answers["nodes"] = [
        {"node": "node-2", "job": "gpt", "state": "active", "ranks": [4, 5], "last_heartbeat_age_s": 0.2}
    ]
    return source


def test_logs_show_lines_and_link_to_rank_and_node(draw, known):
    shown = draw("logs")
    assert "The newest 1 of 7 lines." in shown.text
    assert shown.rows()[0][2:] == ["node-2", "5", "stderr", "cuda", "<CUDA> error"]
    assert 'href="rank?job=gpt&rank=5"' in shown.html
    assert "<CUDA>" not in shown.html


def test_ranks_that_cannot_be_read_are_one_sentence(draw, known):
    assert "seven" in draw("logs", ranks="seven").app.warning[0].value


def test_metrics_draw_the_chosen_counter_and_list_the_others(draw, known):
    shown = draw("metrics", counter="net_rx_bytes")
    assert len(shown.app.get("echarts_chart")) == 1
    assert shown.rows()[0] == ["net_rx_bytes", "2", "2", "600"]
    assert "The 1 that moved most of 9." in shown.text
    assert "are counted and compared" not in shown.text
    known.stored["metric_names"][0]["counted_ns"] = 10**19
    assert "are counted and compared" in draw("metrics", counter="net_rx_bytes").text
    known.stored["metric_names"] = []
    assert "No data: no counter" in draw("metrics").text


def test_metrics_of_chosen_nodes_and_ranks_with_steps_on_the_time_axis(draw, known):
    known.stored["step_starts"] = [{"attempt": 0, "step": step, "ts_ns": 10**18 - step} for step in (40, 60)]
    day = {"from": "2001-09-09", "to": "2001-09-10"}
    shown = draw("metrics", node="node-2, node-3", ranks="4-5", counter="net_rx_bytes", **day)
    asked = {name: dict(options) for name, _, options in known.asked}
    for view in ("metric_names", "metric_series"):
        assert (asked[view]["nodes"], asked[view]["ranks"]) == (("node-2", "node-3"), (4, 5))
    assert '"formatter":"step 60"' in shown.app.get("echarts_chart")[0].proto.spec
    assert "node=node-2%2C+node-3&ranks=4-5" in shown.html
    assert "seven" in draw("metrics", ranks="seven").app.warning[0].value


NIGHT = {"from": "2026-11-25T03:00", "to": "2026-11-25T03:30"}
FROM_NS, TO_NS = 1_795_575_600 * 10**9, 1_795_577_400 * 10**9


@pytest.mark.parametrize(
    ("name", "view", "more"),
    [
        ("metrics", "metric_series", {"counter": "net_rx_bytes"}),
        ("events", "event_lines", {}),
        ("node", "node_counters", {"node": "node-2"}),
        ("rank", "node_counters", {"rank": "5"}),
        ("node", "steps_during", {"node": "node-2"}),
        ("rank", "steps_during", {"rank": "5"}),
    ],
)
def test_pages_ask_for_the_chosen_time(draw, known, name, view, more):
    draw(name, **NIGHT, **more)
    asked = {name: dict(options) for name, _, options in known.asked}
    assert (asked[view]["from_ns"], asked[view]["to_ns"]) == (FROM_NS, TO_NS)


def test_lines_of_the_chosen_time(draw, known):
    draw("logs", **NIGHT)
    (wanted,) = [args[1] for name, args, _ in known.asked if name == "log_lines"]
    assert (wanted.from_ns, wanted.to_ns) == (FROM_NS, TO_NS)


def test_a_rank_stands_beside_its_cohort_in_the_steps_of_the_chosen_time(draw, known):
    known.stored["steps_during"] = [{"first_step": 40, "last_step": 60, "newest_step": 60}]
    draw("rank", rank="5", **NIGHT)
    asked = {name: dict(options) for name, _, options in known.asked}
    assert (asked["work_beside_cohort"]["first"], asked["work_beside_cohort"]["last"]) == (40, 60)
    known.stored["steps_during"] = []
    assert "No data: no step of this job began in this time." in draw("rank", rank="5", **NIGHT).text


def test_events_are_the_audit_of_every_action(draw, known):
    shown = draw("events")
    assert shown.rows()[0][1:4] == ["evict", "ann", "node-2"]
    assert "reason: fan <1>" in shown.text
    known.stored["event_lines"] = []
    assert "No event matches." in draw("events").text


def test_a_rank_has_a_page(draw, known):
    known.answers["stacks"] = {
        "ts_ns": 10**18,
        "tree": [{"frame": "main", "ranks": "0-7", "children": [
            {"frame": "all_reduce", "ranks": "0-4", "children": []},
            {"frame": "forward", "ranks": "5", "children": []},
        ]}],
    }  # fmt: skip
    shown = draw("rank", rank="5")
    for words in ("tor-7", "It <hangs>.", "Rank 5 works 150 ns a step, 1.50x", "<CUDA> error", "forward"):
        assert words in shown.text
    assert "all_reduce" not in shown.text
    assert 'href="nodes?job=gpt&amp;node=node-2"' in shown.html


def test_a_rank_that_the_job_does_not_have_is_one_sentence(draw, known):
    known.stored["topology"] = []
    shown = draw("rank", rank="77")
    assert " ".join(shown.text.split()) == "This job has no rank 77. It has ranks 0-7."
    assert not shown.app.subheader
    assert "rank 7 of this job has not reported where it is" in draw("rank", rank="7").text


def test_a_rank_of_a_recording_is_told_by_where_its_ranks_were(draw, known):
    known.answers["status"]["jobs"] = []
    known.stored["job_nodes"] = [{"node": "node-2", "address": "", "ranks": [8, 9]}]
    assert "This job has no rank 77. It has ranks 8-9." in draw("rank", rank="77").text
    known.stored["job_nodes"] = []
    assert "This job has no rank" not in draw("rank", rank="77").text


def test_a_rank_that_appears_has_its_page(draw, known):
    known.answers["status"]["jobs"][0]["world_size"] = 4
    known.stored["jobs"] = []
    shown = draw("rank", rank="5")
    assert "It has ranks 0-3." in shown.text
    known.answers["status"]["jobs"][0]["world_size"] = 8
    shown.app.run()
    assert "tor-7" in shown.text


def test_a_node_has_a_page(draw, known):
    shown = draw("node", node="node-2")
    for words in ("active", "0.2 s ago", "It <hangs>.", "<CUDA> error", "net_rx_bytes", "2.00 KiB"):
        assert words in shown.text
    assert "No node is chosen." in draw("node").text


def test_a_node_that_the_job_does_not_have_is_one_sentence(draw, known):
    shown = draw("node", node="nosuch")
    assert shown.text.strip() == "nosuch has not taken part in this job. Its node is node-2."
    assert not shown.app.subheader


@pytest.mark.parametrize(("job", "ranks"), [("gpt", "4-5"), ("sweep", "0")])
def test_a_node_is_that_of_the_chosen_job_where_jobs_share_the_machine(draw, known, job, ranks):
    known.answers["nodes"].append({"node": "node-2", "job": "sweep", "state": "active", "ranks": [0]})
    shown = draw("node", node="node-2", job=job)
    assert f'href="timeline?job={job}&amp;ranks={ranks}"' in shown.html


def test_a_node_that_only_another_job_has_says_which(draw, known):
    known.answers["nodes"].append({"node": "node-9", "job": "sweep", "state": "active", "ranks": [0]})
    said = "node-9 has not taken part in this job. It takes part in sweep. The job's node is node-2."
    assert draw("node", node="node-9").text.strip() == said


def test_a_node_that_was_lost_before_keeps_its_page(draw, known):
    known.stored["gone_nodes"] = [{"node": "node-1", "kind": "node_lost", "ts_ns": 1, "detail": "{}"}]
    shown = draw("node", node="node-1")
    assert "lost" in shown.text
    assert "the job does not run" not in shown.text
    assert "<CUDA> error" in shown.text


def test_a_rank_has_the_counters_of_its_node_and_its_eviction_in_place(draw, known):
    nodes = [{"node": "node-2", "state": "active", "ranks": [4, 5]}]
    known.answers["status"]["jobs"][0]["nodes"] = nodes
    known.client.plan = {"node": "node-2", "job": "gpt", "ranks": [4, 5], "allowed": True}
    shown = draw("rank", rank="5")
    assert "2.00 KiB" in shown.text
    shown.click("dry_run")
    assert known.client.done == [("evict", "node-2", "gpt", "dry run from the dashboard", True)]
    assert "node-2 runs ranks 4-5 of gpt." in shown.text
    shown.app.text_input(key="reason").set_value("fan failed")
    shown.click("evict")
    assert known.client.done[1] == ("evict", "node-2", "gpt", "fan failed", False)
    assert shown.app.success[0].value == "gpt: node-2 was evicted: fan failed"
    nodes[0]["state"] = "evicted"
    assert "node-2 cannot be evicted: it is evicted." in draw("rank", rank="5").text


def test_the_stack_of_a_rank_among_many(draw, known):
    leaves = [
        {"frame": "all_reduce", "ranks": "0-4,6-12287", "children": []},
        {"frame": "forward", "ranks": "5", "children": []},
    ]
    known.answers["stacks"] = {
        "ts_ns": 10**18, "tree": [{"frame": "main", "ranks": "0-12287", "children": leaves}],
    }  # fmt: skip
    text = draw("rank", rank="5").text
    assert "forward" in text
    assert "all_reduce" not in text


def test_a_node_shows_its_hardware_and_checkpoints_and_leads_to_its_ranks(draw, known):
    gpu = {"uuid": "GPU-7f", "model": "H100", "serial": "165<1>", "pci": "0000:18:00.0", "numa": 1,
           "nvlink_domain": "ab.3"}  # fmt: skip
    known.answers["nodes"][0]["gpus"] = [gpu]
    known.stored["node_checkpoints"] = [
        {"tier": "peer", "stage": "replicate", "ranks": 2, "newest": 118, "size": 2048, "took_ns": 10**9,
         "ts_ns": 10**18}
    ]  # fmt: skip
    shown = draw("node", node="node-2")
    for words in ("tor-7", "takes no part in a job that runs here"):
        assert words in shown.text
    assert ["0", "H100", "GPU-7f", "165<1>", "0000:18:00.0", "1", "ab.3"] in shown.rows(4)
    assert shown.rows(3)[0][:5] == ["peer", "replicate", "2 of 2", "118", "2.00 KiB"]
    assert 'href="timeline?job=gpt&amp;ranks=4-5"' in shown.html
    assert 'href="stacks?job=gpt&amp;ranks=4-5"' in shown.html
    assert "165<1>" not in shown.html
    assert "node_gpus" not in {view for view, _, _ in known.asked}


@pytest.mark.parametrize(
    ("detail", "words"), [('{"gpus": [{"uuid": "GPU-9"}]}', "GPU-9"), ("{", "No GPU of this node")]
)
def test_the_gpus_of_a_node_that_is_gone_are_on_record(draw, known, detail, words):
    known.stored["node_gpus"] = [{"detail": detail}]
    assert words in draw("node", node="node-2").text


def test_a_rank_asks_for_nobody_but_itself(draw, known):
    draw("rank", rank="5")
    asked = {name: dict(options) for name, _, options in known.asked}
    assert asked["topology"]["rank"] == asked["rank_states"]["rank"] == 5
    assert asked["rank_states"]["node"] == "node-2"


def test_a_rank_has_the_findings_of_its_node_whose_state_it_wears(draw, known):
    known.stored["findings"] = [
        {**FINDING, "subject_type": "node", "subject": "node-2", "summary": "It is slow."},
        {**FINDING, "subject_type": "node", "subject": "node-22", "summary": "Another one."},
    ]
    text = draw("rank", rank="5").text
    assert "It is slow." in text
    assert "Another one." not in text


def test_an_event_before_the_first_attempt_has_none(draw, known):
    known.stored["event_lines"][0] |= {"attempt": -1}
    assert draw("events").rows()[0][5] == "-"
