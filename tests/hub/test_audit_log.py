"""The hub's audit log on disk."""

import errno
import json
import os

import pytest

from pulsetrain.hub import audit_log
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


def kinds(path):
    return [json.loads(line)["event"]["node"] for line in path.read_text().splitlines()]


def test_events_wait_for_a_disk_that_refuses(tmp_path):
    path = tmp_path / "gone" / "audit.log"
    log = AuditLog(path)
    log.append([event(0), event(1)])
    assert (log.waiting, log.lost) == (2, 0)
    path.parent.mkdir()
    log.append([event(2)])
    assert (log.waiting, kinds(path), verify_file(path).problems) == (0, ["n0", "n1", "n2"], ())


def test_what_a_full_disk_took_of_a_write_is_not_written_twice(tmp_path, monkeypatch):
    path, write = tmp_path / "audit.log", os.write
    log = AuditLog(path)
    log.append([event(0)])
    room = [int(1.5 * path.stat().st_size)]

    def full(fd, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(fd, bytes(data)[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", full)
    log.append([event(1), event(2)])
    log.append([event(3)])
    assert log.waiting == 2  # the first one was written
    room[0] = 1 << 20
    log.append()
    assert (kinds(path), verify_file(path).problems) == (["n0", "n1", "n2", "n3"], ())


def test_where_too_many_wait_the_oldest_are_given_up_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "KEPT", 2)
    path = tmp_path / "gone" / "audit.log"
    log = AuditLog(path)
    log.append([event(0), event(1)])
    log.append([event(2)])
    path.parent.mkdir()
    log.append()
    assert (log.lost, kinds(path)) == (1, ["n1", "n2"])


def test_an_event_that_no_record_can_hold_does_not_keep_others_out(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    log.append([event(0), {"node": object()}, event(1)])
    assert (log.lost, kinds(path)) == (1, ["n0", "n1"])


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
