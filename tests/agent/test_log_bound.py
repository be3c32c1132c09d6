"""What log files take on the disk."""

import errno
import os

import pytest
import structlog

from pulsetrain.agent import log_bound
from pulsetrain.agent.log_bound import LogBound, bound

MOST = 1 << 20


@pytest.fixture
def written(tmp_path):
    """A rank's log, which it has open, and what it has written: more than `MOST`."""
    path = tmp_path / "rank_0.out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    text = b"Traceback: the first error\n" + b"".join(b"step %08d\n" % step for step in range(200_000))
    os.write(fd, text)
    yield path, fd, text
    os.close(fd)


def test_a_log_that_grows_keeps_its_first_and_last_lines_and_the_rank_writes_on(written):
    path, fd, text = written
    assert bound(path, MOST) > MOST
    os.write(fd, b"the last line\n")
    now = path.read_bytes()
    assert len(now) == len(text) + len(b"the last line\n"), "offsets stay"
    assert now.startswith(text[: MOST // 4])
    assert now.endswith(text[-MOST // 2 :] + b"the last line\n")
    assert b"(pulsetrain: up to byte" in now
    assert path.stat().st_blocks * 512 <= MOST
    assert bound(path, MOST) == 0, "until it has grown again"


def test_a_log_below_its_bound_stays_as_it_is(written):
    path, _, text = written
    assert bound(path, 2 * len(text)) == 0
    assert path.read_bytes() == text


def test_a_disk_without_holes_is_told_once_and_the_log_stays(written, monkeypatch):
    path, _, text = written

    def refuse(fd, at, size):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(log_bound, "_punch", refuse)
    source = LogBound(lambda: [path, path.with_name("rank_1.out")], MOST)
    with structlog.testing.capture_logs() as logs:
        assert list(source.take(1)) == list(source.take(2)) == []
    assert [line["event"] for line in logs] == ["log_not_bounded"]
    assert path.read_bytes() == text
