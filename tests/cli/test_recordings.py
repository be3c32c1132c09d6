"""Verdicts from files that other tools wrote."""

import json

import pytest
from pyarrow import parquet

from pulsetrain.core.errors import UsageError
from tests.analytics.pipelines import Pipeline
from tests.analytics.recorded_job import Job, run, write

XID = "[Sat Nov 21 10:00:00 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"


def test_hang_names_the_culprits_with_status_1(cli, tmp_path):
    folder = write(run(Job(), host_stops={9: 20}), tmp_path)
    done = cli("hang", folder, "--json")
    assert done.return_value == 1
    answer = json.loads(done.output)
    assert (answer["verdict"], answer["culprits"]) == ("rank", [9])
    assert "at fault: 9" in cli("hang", folder).output


def test_a_finished_job_has_status_0(cli, tmp_path):
    done = cli("hang", write(run(Job()), tmp_path), "--json")
    assert (done.return_value, json.loads(done.output)["verdict"]) == (0, "none")


def test_a_folder_without_dumps_is_bad_usage(cli, tmp_path):
    assert isinstance(cli("hang", tmp_path).exception, UsageError)


def step_times(path):
    """A table in which rank 3 takes twice as long from step 100 on."""

    def duration_s(rank, step):
        return (0.2 if rank == 3 and step >= 100 else 0.1) * (1 + 0.01 * ((rank * 7 + step * 3) % 5))

    rows = [f"{rank},{step},{duration_s(rank, step)}" for step in range(200) for rank in range(8)]
    path.write_text("\n".join(["rank,step,duration_s", *rows]))
    return path


def test_failslow_names_the_worker_and_its_evidence_is_an_object(cli, tmp_path):
    path = step_times(tmp_path / "steps.csv")
    (finding,) = json.loads(cli("failslow", path, "--json").output)
    assert (finding["kind"], finding["subject"]) == ("fail_slow", "3")
    assert finding["evidence"]["first_step"] == pytest.approx(100, abs=3)
    assert "rank 3" in cli("failslow", path).output


def test_kmsg_reads_a_pipe_and_asks_for_action_only_where_told(cli):
    assert cli("kmsg", "-", "--node", "n7", input=XID).return_value == 0
    done = cli("kmsg", "-", "--node", "n7", "--check", "--json", input=XID)
    assert done.return_value == 1
    (finding,) = json.loads(done.output)
    assert finding["evidence"]["xid"] == 79
    assert "on n7" in finding["summary"]


def test_kmsg_without_a_file_is_bad_usage(cli, tmp_path):
    assert isinstance(cli("kmsg", tmp_path / "none").exception, UsageError)


def test_whatif_says_how_fast_the_job_would_be(cli, tmp_path):
    path = tmp_path / "trace.parquet"
    parquet.write_table(Pipeline(slow={(0, 1): 2.0}).table(), path)
    answer = json.loads(cli("whatif", path, "--json").output)
    assert answer["S"] > 1.1
    assert "slower than without stragglers" in cli("whatif", path).output


def test_logs_name_the_file_that_differs(cli, tmp_path):
    for rank in range(12):
        lines = [f"step {step} loss 2.5" for step in range(50)]
        if rank == 5:
            lines += ["CUDA error: uncorrectable ECC error encountered"] * 3
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines))
    answer = json.loads(cli("logs", tmp_path, "--json").output)
    assert [f["subject"] for f in answer["findings"]] == ["5"]
    assert isinstance(answer["findings"][0]["evidence"], dict)
    text = cli("logs", tmp_path).output
    assert "rank 5 prints what its peers do not" in text
    assert text.count("rank_") == 12


def test_rules_test_says_what_each_rule_matches(cli, tmp_path):
    rules, log = tmp_path / "rules.toml", tmp_path / "rank_0.err"
    rules.write_text('[[rule]]\nname = "xid"\npattern = "NVRM: Xid"\nkind = "gpu_fault"\n')
    log.write_text(f"hello\n{XID}")
    answer = json.loads(cli("rules", "test", rules, log, "--json").output)
    assert (answer["lines"], answer["matched"], answer["rules"][0]["first"]) == (2, 1, 2)
    assert "1 of 2 lines match" in cli("rules", "test", rules, log).output


def test_rules_test_names_the_rule_that_cannot_be_used(cli, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "bad"\npattern = "("\n')
    error = cli("rules", "test", rules, rules).exception
    assert isinstance(error, UsageError)
    assert "rule 'bad'" in str(error)
