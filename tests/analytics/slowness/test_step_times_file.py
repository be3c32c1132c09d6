"""Files of step times: every form that is read, and one clear line for what is not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from pulsetrain.analytics.slowness.fail_slow import find
from pulsetrain.analytics.slowness.step_times_file import read
from pulsetrain.analytics.verdict import Inconclusive
from pulsetrain.core.errors import UsageError
from tests.analytics.slowness.series import calm


def file_of(values, path, names=("worker", "time", "batch_time_norm")):
    step, rank = np.meshgrid(np.arange(values.shape[1]), np.arange(values.shape[0]), indexing="ij")
    order = np.random.default_rng(1).permutation(step.size)
    table = pa.table(
        {
            names[0]: rank.ravel()[order],
            names[1]: step.ravel()[order] * 10 + 1,
            names[2]: values.T.ravel()[order],
        }
    )
    (parquet.write_table if path.suffix == ".parquet" else csv.write_csv)(table, path)
    return path


def test_rows_without_a_rank_or_step_are_left_out(tmp_path):
    values = calm(4, 60)
    lines = [f"{r},{s},{values[r, s]}" for r in range(4) for s in range(60)]
    whole, torn = tmp_path / "whole.csv", tmp_path / "torn.csv"
    whole.write_text("\n".join(["worker,step,duration_s", *lines]))
    torn.write_text("\n".join(["worker,step,duration_s", ",5,9.0", "1,,9.0", *lines, "2,1e300,9.0"]))
    assert find(read(torn)) == find(read(whole))
    torn.write_text("worker,step,duration_s\n,5,9.0\n")
    (verdict,) = find(read(torn))
    assert isinstance(verdict, Inconclusive)


def test_csv_and_parquet_say_the_same(tmp_path):
    values = calm()
    values[6, 180:195] *= 1.5
    (a,) = find(read(file_of(values, tmp_path / "a.csv")))
    (b,) = find(read(file_of(values, tmp_path / "b.parquet", ("rank", "step", "duration_ns"))))
    assert (a.subject, a.evidence) == (b.subject, b.evidence)
    assert (a.evidence["first_step"], a.evidence["last_step"]) == (1801, 1941)


def test_workers_with_clocks_of_their_own_go_by_position(tmp_path):
    values = calm()
    values[2, 200:] *= 1.4
    rows = [f"{w},{t * 100 + w * 7},{values[w, t]}" for w in range(8) for t in range(300)]
    (tmp_path / "a.csv").write_text("\n".join(["rank,time,duration", *rows]))
    (verdict,) = find(read(tmp_path / "a.csv"))
    assert verdict.subject == "2"


def test_what_is_no_such_file_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="no column rank or worker"):
        read(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text("rank,step,duration\n1,2,slow\n")
    with pytest.raises(UsageError, match="not numeric"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.parquet").write_text("nope")
    with pytest.raises(UsageError, match="neither CSV nor Parquet"):
        read(tmp_path / "z.parquet")
