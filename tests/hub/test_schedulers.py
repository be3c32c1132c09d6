"""Which scheduler a configuration means."""

import pytest

from pulsetrain.core.errors import ConfigError, UsageError
from pulsetrain.hub.schedulers import SCHEDULERS, requests_to
from pulsetrain.recovery.scheduler import KINDS, SchedulerConfig


def test_every_kind_has_a_scheduler():
    assert tuple(SCHEDULERS) == KINDS


def test_without_a_word_nobody_is_asked():
    requests = requests_to(SchedulerConfig(), {})
    assert (requests.scheduler.name, requests.replaces) == ("", False)


def test_slurm_replaces_where_it_has_a_template(tmp_path):
    template = tmp_path / "spare.sbatch"
    template.touch()
    assert requests_to(SchedulerConfig(kind="slurm", template=str(template)), {}).replaces
    assert not requests_to(SchedulerConfig(kind="slurm"), {}).replaces


def test_kubernetes_needs_no_file_but_an_api():
    environ = {"PULSETRAIN_KUBERNETES_API": "http://127.0.0.1:8001"}
    assert requests_to(SchedulerConfig(kind="kubernetes"), environ).replaces
    with pytest.raises(UsageError, match="no Kubernetes API"):
        requests_to(SchedulerConfig(kind="kubernetes"), {})


def test_a_template_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"scheduler\.template = '/no/such': no such file"):
        requests_to(SchedulerConfig(kind="slurm", template="/no/such"), {})
