"""Answers from the records that a store holds."""

import json
import time

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.fake_hub import fill
from tests.dashboard.recorded_job import RANKS, SLOW_NODE, RecordedJob


@pytest.fixture(scope="module")
def store_url(tmp_path_factory):
    """A store with the records of one job. Nobody has it open."""
    url = f"chdb://{tmp_path_factory.mktemp('stored')}/store"
    store = open_store(url)
    fill(store, RecordedJob(now_ns=time.time_ns()))
    store.close()
    return url


@pytest.mark.integration
def test_analyze_prints_findings_with_evidence_as_objects(cli, store_url):
    done = cli("analyze", "--job", "gpt", "--since", 81, "--store", store_url, "--json")
    assert done.exception is None
    assert done.return_value == 1
    findings = json.loads(done.output)
    assert all(isinstance(f["evidence"], dict) for f in findings)
    assert any(f["kind"] == "straggler" and f["subject"] == SLOW_NODE for f in findings)


@pytest.mark.integration
def test_with_verdicts_analyze_also_says_what_is_healthy_or_blind(cli, store_url):
    words = ("analyze", "--job", "gpt", "--since", 81, "--store", store_url)
    states = {v["state"] for v in json.loads(cli(*words, "--verdicts", "--json").output)}
    assert {"finding", "healthy"} <= states
    assert "healthy: " in cli(*words, "--verdicts").output
    assert "healthy: " not in cli(*words).output


@pytest.mark.integration
def test_a_job_that_the_store_has_never_seen_is_bad_usage(cli, store_url):
    assert isinstance(cli("analyze", "--job", "nosuch", "--store", store_url).exception, UsageError)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--since", 999_999), "no step in 999999: is on record; steps there: "),
        (("--since", 90, "--until", 80), "--since 90 is after --until 80"),
        (("--attempt", 7), "no step of attempt 7 is on record; attempts with steps: 1, 0"),
    ],
)
def test_steps_that_are_not_there_are_not_taken_for_clean(cli, store_url, words, says):
    done = cli("analyze", "--job", "gpt", *words, "--store", store_url)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)


def test_peaks_without_a_device_are_refused(cli, tmp_path):
    assert "it needs --device" in str(cli("analyze", "--job", "g", "--peaks", tmp_path / "p.csv").exception)


@pytest.mark.integration
def test_a_trace_holds_the_chosen_steps_and_ranks(cli, store_url, tmp_path):
    file = tmp_path / "gpt.json"
    words = ("trace", "export", "--job", "gpt", "--steps", "100:101", "--store", store_url, "-o", file)
    answer = json.loads(cli(*words, "--ranks", "0,5-6", "--json").output)
    assert answer == {"file": str(file), "bytes": file.stat().st_size, "job": "gpt", "steps": [100, 101]}
    spans = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {s["pid"] for s in spans} == {0, 5, 6}
    assert {s["args"]["step"] for s in spans} == {100, 101}
    cli(*words)
    spans = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {s["pid"] for s in spans} == set(range(RANKS))


@pytest.mark.parametrize("steps", ["", "a:b"])
def test_steps_that_are_none_are_bad_usage(cli, tmp_path, steps):
    done = cli("trace", "export", "--job", "gpt", "--steps", steps, "-o", tmp_path / "f")
    assert isinstance(done.exception, UsageError)


def test_a_device_without_a_peak_is_bad_usage(cli):
    done = cli("analyze", "--job", "gpt", "--device", "H100-SXM")
    assert isinstance(done.exception, UsageError)
    assert "DEVICE/DTYPE" in str(done.exception)


@pytest.mark.integration
def test_a_job_without_errors_says_so(cli, store_url):
    words = ("errors", "--job", "gpt", "--store", store_url)
    assert json.loads(cli(*words, "--json").output)["culprit"] == -1
    assert "No error on record." in cli(*words).output


def test_errors_of_a_job_that_the_store_has_never_seen_are_bad_usage(cli, store_url):
    done = cli("errors", "--job", "gtp", "--store", store_url)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "job 'gtp': nothing of it is on record"
