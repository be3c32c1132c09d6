"""The operator as a command."""

import pytest

import pulsetrain.core.log
import pulsetrain.hub.kubernetes.operator
from pulsetrain.core.errors import UsageError


@pytest.fixture(autouse=True)
def _own_log(monkeypatch):
    monkeypatch.setattr(pulsetrain.core.log, "configure", lambda **_: None)


def test_operator_runs_with_the_environment(cli, monkeypatch):
    seen = []
    monkeypatch.setattr(pulsetrain.hub.kubernetes.operator, "run_operator", lambda *given: seen.append(given))
    monkeypatch.setenv("PULSETRAIN_KUBERNETES_NAMESPACE", "train")
    assert cli("operator").exit_code == 0
    assert seen[0][0]["PULSETRAIN_KUBERNETES_NAMESPACE"] == "train"


def test_without_an_api_it_is_one_line(cli, monkeypatch):
    for name in ("PULSETRAIN_KUBERNETES_API", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    done = cli("operator")
    assert isinstance(done.exception, UsageError)  # entry.main makes one line and status 2 of it
    assert "no Kubernetes API" in str(done.exception)
