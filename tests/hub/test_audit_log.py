"""The hub's audit log on disk."""

import os

import pytest

from pulsetrain.hub.audit_log import TAIL_BYTES, AuditLog, verify_file


def event(number):
    return {"kind": "evict", "node": f"n{number}", "detail": "{}"}


def test_a_new_hub_goes_on_where_the_old_one_ended(tmp_path):
    path = tmp_path / "audit.log"
    AuditLog(path).append([event(0), event(1)])
    AuditLog(path).append([event(2)])
    answer = verify_file(path)
    assert (answer.records, answer.problems) == (3, ())
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_what_a_crash_left_half_written_is_cut_off(tmp_path):
    path = tmp_path / "audit.log"
    AuditLog(path).append([event(0)])
    with path.open("a") as file:
        file.write('{"seq": 1, "prev"')
    AuditLog(path).append([event(1)])
    answer = verify_file(path)
    assert (answer.records, answer.problems) == (2, ())


def test_a_log_that_was_changed_is_found_also_after_a_new_hub_has_written_on(tmp_path):
    path = tmp_path / "audit.log"
    AuditLog(path).append([event(0), event(1)])
    path.write_text(path.read_text().replace("n0", "n9"))
    AuditLog(path).append([event(2)])
    [problem] = verify_file(path).problems
    assert problem.line == 1


def test_a_disk_that_refuses_loses_records_and_stops_nothing(tmp_path):
    log = AuditLog(tmp_path / "gone" / "audit.log")
    log.append([event(0), event(1)])
    assert log.lost == 2
    (tmp_path / "gone").mkdir()
    log.append([event(2)])
    assert verify_file(tmp_path / "gone" / "audit.log").problems == ()


@pytest.mark.parametrize("length", [TAIL_BYTES, 6 * TAIL_BYTES])
def test_a_record_that_is_longer_than_usual_is_found_too(tmp_path, length):
    path = tmp_path / "audit.log"
    AuditLog(path).append([event(0), event(1) | {"detail": "x" * length}])
    AuditLog(path).append([event(2)])
    answer = verify_file(path)
    assert (answer.records, answer.problems) == (3, ())


@pytest.mark.parametrize("size", [1, 5000])
def test_the_end_of_a_long_log_is_found(tmp_path, size):
    path = tmp_path / "audit.log"
    AuditLog(path).append([event(i) | {"detail": "x" * 300} for i in range(size)])
    AuditLog(path).append([event(0)])
    assert verify_file(path).problems == ()
