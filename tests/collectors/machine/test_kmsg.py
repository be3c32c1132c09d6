"""The kernel's log as it is followed: records, gaps and a device that is not there."""

from __future__ import annotations

import os

import pytest

from pulsetrain.agent.sources import HardwareSource
from pulsetrain.collectors.machine.kmsg import KmsgReader, boot_time_ns
from pulsetrain.records.kernel_log import READABLE


def test_records_become_rows_of_logs(tmp_path):
    device = tmp_path / "kmsg"
    os.mkfifo(device)
    reader = KmsgReader(device, node="n1", backlog=True)
    assert reader.blind == ""
    writer = os.open(device, os.O_WRONLY)
    os.write(writer, b"3,7,1500000,-;NVRM: Xid (PCI:0000:9b:00): 48, x\n SUBSYSTEM=pci\n")
    batch = reader.poll()
    names = ("node", "source", "severity", "message", "rank")
    rows = [{name: row[name] for name in names} for row in batch.to_rows()]
    assert rows == [
        {
            "node": "n1",
            "source": "kmsg",
            "severity": "error",
            "message": "NVRM: Xid (PCI:0000:9b:00): 48, x",
            "rank": -1,
        }
    ]
    assert reader.poll() is None
    os.close(writer)
    reader.close()


def test_a_device_that_cannot_be_opened_is_blind_and_silent(tmp_path):
    reader = KmsgReader(tmp_path / "none")
    assert "No such file" in reader.blind
    assert reader.poll() is None


def test_a_quiet_log_says_that_it_can_be_read(tmp_path):
    (tmp_path / "kmsg").touch()
    reader = KmsgReader(tmp_path / "kmsg", node="n1")
    source = HardwareSource((reader,), reader, 1.0)
    source.sample()
    ((row,),) = (batch.to_rows() for batch in source.take(0))
    assert (row["node"], row["name"], row["value"]) == ("n1", READABLE, 1.0)
    reader.close()


def test_boot_time_comes_from_proc_stat(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
    assert boot_time_ns(tmp_path) == 1_700_000_000 * 10**9
    assert boot_time_ns(tmp_path / "none") == 0


@pytest.mark.integration
def test_what_is_written_to_the_real_device_comes_back():
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg is not ours to read and write")
    reader = KmsgReader(node="n1")
    with open("/dev/kmsg", "w") as device:
        device.write("<6>pulsetrain: a line of a test\n")
    batch = reader.poll()
    assert batch is not None
    assert "user space: pulsetrain: a line of a test" in batch.column("message").to_list()
    reader.close()
