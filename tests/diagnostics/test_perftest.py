"""What `ib_write_bw` is told, and what its reports and messages mean.

The reports have the form that its source writes: version 4.5-0.17, and 25.10, which writes JSON.
The message about missing devices was printed by Debian's binary. Others are from its source.
"""

import math
from pathlib import Path

import pytest

from pulsetrain.core.errors import CorruptData
from pulsetrain.diagnostics import perftest
from pulsetrain.diagnostics.perftest import RdmaEnd, average_bits_per_s, failure, of_link, second_hand

OLD = """{
test_info: {
test: RDMA_Write_BW_Test,
Dual_port: OFF,
Device: "mlx5_0",
TX_depth : 128,
CQ_Moderation: 100,
Mtu: 4096,
Link_type: Ethernet,
GID_index: 3,
},
results: {
MsgSize: 65536,
n_iterations: 748634,
BW_peak: 0.00,
BW_average: RATE,
MsgRate: 0.748634,
},
}
"""
NEW = """{
"test_info": {
"test": "RDMA_Write_BW_Test",
"Device": "mlx5_0",
"TX_depth": 128
},
"results": {
"MsgSize": 65536,
"n_iterations": 748634,
"BW_peak": 0.00,
"BW_average": RATE,
"MsgRate": 0.748634}
}
"""
NO_DEVICE = (
    " Did not detect devices \n"
    " If device exists, check if driver is up\n"
    " Unable to find the Infiniband/RoCE device\n"
)
STATUS = """ Completion with error at client
 Failed status 12: wr_id 0 syndrom 0x81
scnt=128, ccnt=0
 Failed to complete run_iter_bw function successfully
"""


@pytest.mark.parametrize("report", [OLD, NEW], ids=["4.5-0.17", "25.10"])
@pytest.mark.parametrize(("rate", "bits_per_s"), [("392.50", 392.5e9), ("0.012345", 12345e3), ("0.00", 0.0)])
def test_the_rate_is_the_average_in_bits_a_second(report, rate, bits_per_s):
    assert average_bits_per_s(report.replace("RATE", rate)) == pytest.approx(bits_per_s)


@pytest.mark.parametrize("report", ["", "{}", OLD.replace("RATE", "-nan"), OLD.replace("RATE", "inf"), OLD])
def test_a_report_without_a_rate_is_refused(report):
    with pytest.raises(CorruptData, match="no BW_average"):
        average_bits_per_s(report)


def test_both_sides_name_device_port_and_gid_and_take_the_same_time():
    end = RdmaEnd(device="mlx5_0", port=1, gid_index=3)
    server = perftest.server_command(end, tcp_port=18600, seconds=0.5)
    assert server == [
        "ib_write_bw", "-d", "mlx5_0", "-i", "1", "-x", "3", "-p", "18600", "-s", "65536", "-D", "1", "-F",
        "--report_gbits",
    ]  # fmt: skip
    client = perftest.client_command(end, "10.0.0.2", tcp_port=18600, seconds=0.5, report=Path("/r"))
    assert client == [*server, "--out_json", "--out_json_file=/r", "10.0.0.2"]


def test_infiniband_needs_no_gid_and_a_limit_is_kept_message_by_message():
    end = RdmaEnd(device="mlx5_0", port=2)
    command = perftest.client_command(
        end, "10.0.0.2", tcp_port=1, seconds=1, report=Path("/r"), bits_per_s=1e8
    )
    assert "-x" not in command
    assert {"--rate_limit=0.100000", "--rate_units=g", "--burst_size=1"} <= set(command)


@pytest.mark.parametrize(
    ("stderr", "said", "link", "second"),
    [
        (
            NO_DEVICE,
            "ib_write_bw: Did not detect devices; If device exists, check if driver is up; "
            "Unable to find the Infiniband/RoCE device",
            False,
            False,
        ),
        (STATUS, "ib_write_bw: Completion with error at client; Failed status 12: wr_id 0", True, False),
        (" Port number 1 state is Down\n", "ib_write_bw: Port number 1 state is Down", True, False),
        ("Couldn't allocate MR\n", "ib_write_bw: Couldn't allocate MR", False, False),
        (" Failed to exchange data between server and clients\n", "ib_write_bw: Failed to", False, True),
        ("", "ib_write_bw: exit status 137", False, True),
    ],
)
def test_a_failure_is_one_line_that_says_whether_the_link_is_to_blame(stderr, said, link, second):
    line = failure(stderr, 137)
    assert line.startswith(said)
    assert len(line) <= 200
    assert "\n" not in line
    assert (of_link(line), second_hand(line)) == (link, second)


def test_a_transfer_takes_a_whole_number_of_seconds():
    assert [perftest.whole_seconds(s) for s in (0.2, 1.0, 1.1)] == [1, 1, 2]
    assert math.isfinite(perftest.SETUP_S)
