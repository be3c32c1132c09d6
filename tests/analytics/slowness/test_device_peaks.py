"""The table of device peaks and the rows of a site."""

from __future__ import annotations

import pytest

from pulsetrain.analytics import report
from pulsetrain.analytics.slowness import device_peaks
from pulsetrain.core.errors import UsageError


def test_an_unknown_device_names_those_that_are_known():
    with pytest.raises(UsageError, match="H200/bf16"):
        device_peaks.peak("H900", "bf16")


def test_a_sites_table_overrides_ours(tmp_path):
    path = tmp_path / "peaks.csv"
    path.write_text("device,dtype,tflops,source\nA100,bf16,300,measured\nX1,fp8,9,ours\n")
    assert device_peaks.peak("A100", "bf16", path).flops_per_s == 300e12
    assert device_peaks.peak("X1", "fp8", path).source == "ours"


@pytest.mark.parametrize(("text", "words"), [("H100", "DEVICE/DTYPE"), ("H900/bf16", "no peak on record")])
def test_a_device_is_named_with_its_data_type(text, words):
    assert report.device_peak("H100-SXM/bf16").flops_per_s == pytest.approx(989.4e12)
    with pytest.raises(UsageError, match=words):
        report.device_peak(text, option="[hub] device")


def test_a_sites_table_that_cannot_be_read_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        device_peaks.peak("A100", "bf16", tmp_path / "none.csv")
