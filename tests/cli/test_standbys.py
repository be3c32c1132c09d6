"""How many standbys, from flags alone and from a record."""

import contextlib
import json
import time

import pytest

from pulsetrain.core.errors import UsageError
from pulsetrain.stream.store.clickhouse import open_store
from tests.dashboard.fake_hub import fill
from tests.dashboard.recorded_job import RecordedJob


def test_a_fleet_and_a_rate_need_no_hub(cli):
    done = cli("standbys", "--machines", 1024, "--failures-per-node-day", 0.0012)
    assert done.output == "4 standbys for 1,024 machines: on 99 of 100 days no more of them fail.\n"


def test_a_rate_that_is_none_is_bad_usage(cli):
    done = cli("standbys", "--machines", 8, "--failures-per-node-day", 1.5)
    assert isinstance(done.exception, UsageError)
    assert "rate 1.5" in str(done.exception)


@pytest.mark.integration
def test_a_store_without_machines_asks_for_their_number(cli, tmp_path):
    url = f"chdb://{tmp_path}/store"
    with contextlib.closing(open_store(url)) as store:
        store.migrate()
    done = cli("standbys", "--store", url)
    assert "no machine is on record: give --machines N" in str(done.exception)


@pytest.mark.integration
def test_machines_and_their_failures_come_from_the_record(cli, tmp_path):
    url = f"chdb://{tmp_path}/store"
    store = open_store(url)
    recorded = RecordedJob(now_ns=time.time_ns())
    fill(store, recorded)
    store.close()
    answer = json.loads(cli("standbys", "--store", url, "--json").output)
    assert answer["machines"] == answer["record"]["machines"] > 0
    assert answer["record"]["machine_days"] >= answer["machines"] / 24
    assert answer["standbys"] >= 0
    assert 0 < answer["daily_rate"] < 1
