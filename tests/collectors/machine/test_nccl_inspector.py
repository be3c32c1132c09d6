"""What NCCL Inspector writes becomes samples. Lines follow NVIDIA/nccl, plugins/profiler/inspector (output
format v4.0, as inspector_json.cc writes it). They were written, not recorded."""

import json
from collections import Counter

import pytest

from pulsetrain.collectors.machine.nccl_inspector import (
    BEHIND_BYTES,
    LINE_BYTES,
    InspectorFile,
    Totals,
    batches,
    files_in,
    parse,
)

SECOND_US = 1_000_000


def line(
    seq=1, *, kind="AllReduce", size=1 << 20, time_us=1000, bus=2.0, at_us=1_748_030_377_748_202, **more
):
    """One line of a file; `more` replaces fields of the header."""
    header = {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": 2, "n_ranks": 8, "nnodes": 1}
    perf = {
        "coll": kind,
        "coll_sn": seq,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 1.142857,
        "coll_busbw_gbs": bus,
    }
    return json.dumps(
        {"header": header | more, "metadata": metadata(at_us), "coll_perf": perf}, separators=(",", ":")
    )


def metadata(at_us):
    return {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": at_us,
        "hostname": "node-3",
        "pid": 1639453,
    }


def p2p():
    perf = {
        "p2p": "Send", "p2p_sn": 4, "p2p_peer": 3, "p2p_msg_size_bytes": 4096, "p2p_exec_time_us": 9,
        "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": 0.4, "p2p_busbw_gbs": 0.4,
    }  # fmt: skip
    header = {"id": "0x1", "comm_name": "pp", "rank": 0, "n_ranks": 2, "nnodes": 1}
    return json.dumps({"header": header, "metadata": metadata(17), "p2p_perf": perf})


def test_a_collective_and_a_transfer_are_read_with_sizes_times_and_bandwidth():
    one = parse(line(1407, size=17179869184, time_us=61974, bus=485.119099))
    assert (one.communicator, one.rank, one.size, one.kind, one.seq) == (
        "0x7f8c496ae9f661", 2, 8, "AllReduce", 1407,
    )  # fmt: skip
    assert (one.message_bytes, one.duration_ns, one.bus_bytes_per_s) == (17179869184, 61974000, 485.119099e9)
    assert (one.host, one.pid, one.dumped_ns) == ("node-3", 1639453, 1748030377748202000)
    other = parse(p2p())
    assert (other.communicator, other.kind, other.message_bytes) == ("pp", "Send", 4096)


def test_the_readmes_own_example_is_read():
    example = """{"header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
      "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "",
        "rec_mechanism": "profiler_plugin", "dump_timestamp_us": 1748030377748202,
        "hostname": "example-hostname", "pid": 1639453},
      "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184,
        "coll_exec_time_us": 61974, "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099}}"""
    assert parse(example).bus_bytes_per_s == 485.119099e9


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "3", '"x"', line()[:-5], '{"header": 3, "metadata": {}, "coll_perf": {}}',
        line(time_us=-1), line(size="x"), line(time_us=float("inf")), line(rank=None), "[" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_operation_is_none(text):
    assert parse(text) is None


@pytest.mark.parametrize("bus", ["nan", float("nan"), float("inf"), -1, None])
def test_a_bandwidth_that_is_none_leaves_the_rest(bus):
    assert parse(line(bus=bus)).bus_bytes_per_s == 0.0


def values(samples):
    return {(device, name): value for device, name, value in samples}


def test_operations_become_totals_and_gauges_of_a_window():
    totals = Totals("rank 3")
    totals.add(parse(line(1, time_us=1000, bus=2.0)))
    totals.add(parse(line(2, time_us=3000, bus=4.0)))
    device = "rank 3, 0x7f8c496ae9f661 of 8, AllReduce"
    assert values(totals.samples()) == {
        (device, "nccl_operations"): 2.0,
        (device, "nccl_message_bytes"): 2.0 * (1 << 20),
        (device, "nccl_duration_ns"): 4e6,
        (device, "nccl_longest_ns"): 3e6,
        (device, "nccl_busbw_bytes_per_s"): 3.5e9,  # 1 ms at 2 GB/s and 3 ms at 4 GB/s
    }
    assert totals.samples() == []
    totals.add(parse(line(3, time_us=500, bus="nan")))
    later = values(totals.samples())
    assert (later[device, "nccl_operations"], later[device, "nccl_longest_ns"]) == (3.0, 5e5)
    assert (device, "nccl_busbw_bytes_per_s") not in later


def test_more_kinds_than_there_is_room_for_are_counted_and_not_kept():
    totals = Totals("rank 0", series=2)
    for number in range(5):
        totals.add(parse(line(id=hex(number))))
    assert totals.dropped == 3
    assert len({device for device, _, _ in totals.samples()}) == 2


def poll(file, most_bytes=1 << 20):
    return [operation.seq for operation in file.poll(most_bytes)]


def test_a_line_is_read_once_it_has_an_end(tmp_path):
    path = tmp_path / "f.log"
    file = InspectorFile(path)
    assert poll(file) == []
    path.write_text(f"{line(1)}\n{line(2)[:40]}")
    assert poll(file) == [1]
    with path.open("a") as more:
        more.write(f"{line(2)[40:]}\n{line(3)}\n")
    assert poll(file) == [2, 3]
    assert (file.bad_lines, file.skipped_bytes) == (0, 0)


def test_a_file_that_is_begun_again_is_read_from_its_start(tmp_path):
    path = tmp_path / "f.log"
    path.write_text(f"{line(1)}\n{line(2)}\n{line(3)[:9]}")
    file = InspectorFile(path)
    poll(file)
    path.write_text(f"{line(7)}\n")
    assert poll(file) == [7]


def test_bad_and_endless_lines_are_counted_and_cost_no_memory(tmp_path):
    path = tmp_path / "f.log"
    path.write_bytes(b"junk\n\n" + b"x" * (3 * LINE_BYTES) + b"\n" + f"{line(4)}\n".encode())
    file = InspectorFile(path)
    seen = [seq for _ in range(8) for seq in poll(file, LINE_BYTES)]
    assert seen == [4]
    assert file.bad_lines == 2
    assert len(file._partial) <= LINE_BYTES


def test_a_file_that_grows_faster_than_it_is_read_is_skipped_forward(tmp_path):
    path = tmp_path / "f.log"
    text = f"{line(1)}\n"
    count = (BEHIND_BYTES + 50_000) // len(text)
    path.write_text(text * count + f"{line(2)}\n")
    file = InspectorFile(path)
    assert Counter(poll(file, 4000))[2] == 1
    assert file.skipped_bytes == path.stat().st_size - 4000
    assert file.bad_lines == 0


def test_recorded_files_become_rows_of_metrics_every_five_seconds(tmp_path):
    path = tmp_path / "node-3-pid1639453.log"
    times = [10 * SECOND_US, 11 * SECOND_US, 16 * SECOND_US]
    path.write_text("".join(f"{line(n, at_us=at)}\n" for n, at in enumerate(times)) + "torn {")
    (tmp_path / "other-pid1.log").write_text("no inspector wrote this\n")
    assert files_in(tmp_path) == [path]
    rows = [row for batch in batches(path, now_ns=1) for row in batch.to_rows()]
    counts = [(row["ts"], row["node"], row["value"]) for row in rows if row["name"] == "nccl_operations"]
    assert counts == [(15 * 10**9, "node-3", 2.0), (20 * 10**9, "node-3", 3.0)]
    assert rows[0]["device"] == "pid 1639453, 0x7f8c496ae9f661 of 8, AllReduce"


def test_a_folder_without_such_files_has_none(tmp_path):
    assert files_in(tmp_path) == files_in(tmp_path / "missing") == []
