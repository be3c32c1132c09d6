"""One contract for every storage: a file appears whole or not at all."""

import errno
import os
import stat

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

from pulsetrain.checkpoint.storage.backend import FsspecStorage, LocalStorage, RateLimit, open_storage
from pulsetrain.core.errors import CorruptData, UsageError


@pytest.fixture(params=["local", "file", "memory"])
def storage(request, tmp_path):
    if request.param == "memory":
        yield open_storage("memory://backend-test")
        fsspec.filesystem("memory").rm("/backend-test", recursive=True)
    else:
        yield open_storage(str(tmp_path) if request.param == "local" else f"file://{tmp_path}")


def test_what_is_written_is_read(storage):
    assert storage.put("j/step-1/a.pack", [b"abc", memoryview(b"defg")]) == 7
    assert storage.read("j/step-1/a.pack") == b"abcdefg"
    assert storage.read("j/step-1/a.pack", 2, 3) == b"cde"
    target = bytearray(4)
    storage.read_into("j/step-1/a.pack", 3, memoryview(target))
    assert target == b"defg"


def test_a_file_is_replaced_as_a_whole(storage):
    storage.put("f", [b"long content"])
    storage.put("f", [b"short"])
    assert storage.read("f") == b"short"


def test_missing_files_and_folders(storage):
    storage.put("j/a", [b"x"])
    with pytest.raises(FileNotFoundError):
        storage.read("j/b")
    with pytest.raises(FileNotFoundError):
        storage.read_into("j/b", 0, memoryview(bytearray(1)))
    assert storage.list("nowhere") == []


def test_a_file_that_is_too_short_is_an_error(storage):
    storage.put("f", [b"abc"])
    with pytest.raises(CorruptData, match="f ends 2 bytes early"):
        storage.read_into("f", 1, memoryview(bytearray(4)))


def test_names_are_listed_in_order_and_folders_are_among_them(storage):
    for name in ("b", "a", "sub/c"):
        storage.put(f"j/{name}", [b"x"])
    assert storage.list("j") == ["a", "b", "sub"]
    assert storage.list("j/sub") == ["c"]


def test_removing_takes_a_folder_with_all_in_it_and_nothing_else(storage):
    for name in ("one/a", "one/sub/b", "two/c"):
        storage.put(f"j/{name}", [b"x"])
    storage.remove("j/one")
    storage.remove("j/one")  # is gone already
    assert storage.list("j") == ["two"]
    storage.remove("j/two/c")
    assert storage.list("j/two") == []


def test_removing_a_link_leaves_what_it_leads_to(tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "rank-0.pack").write_bytes(b"kept")
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "step-100").symlink_to(archive)
    storage = open_storage(str(tmp_path / "storage"))
    storage.remove("step-100")
    assert storage.list("") == []
    assert (archive / "rank-0.pack").read_bytes() == b"kept"


def test_a_write_that_fails_leaves_no_file(tmp_path):
    storage = LocalStorage(tmp_path)

    def chunks():
        yield b"first"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        storage.put("j/f", chunks())
    assert list((tmp_path / "j").iterdir()) == []


def breaks_off():
    yield b"half"
    raise OSError(errno.EIO, "the arena is gone")


def test_a_write_that_breaks_off_leaves_no_part_of_the_file(storage):
    with pytest.raises(OSError, match="the arena is gone"):
        storage.put("j/f", breaks_off())
    assert storage.list("j") == []


class Bucket:
    """An object store: an upload is complete once its file is closed. Its client has errors of its own."""

    class Refused(Exception):
        pass

    def __init__(self):
        self.objects, self.discarded, self.refuses = {}, [], False

    def _parent(self, path):
        return path.rpartition("/")[0]

    def makedirs(self, path, exist_ok):
        if self.refuses:
            raise self.Refused("slow down")

    def open(self, path, mode):
        if self.refuses:
            raise self.Refused("slow down")
        return Upload(self, path, mode, cache_type="none")

    exists = ls = invalidate_cache = lambda self, *_, **__: self.makedirs("", True)


class Upload(AbstractBufferedFile):
    def _upload_chunk(self, final=False):
        if final:
            self.fs.objects[self.path] = self.buffer.getvalue()
        return True

    def discard(self):
        self.fs.discarded.append(self.path)


@pytest.fixture
def bucket(monkeypatch):
    bucket = Bucket()
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (bucket, "b"))
    return bucket


def test_an_upload_that_breaks_off_is_discarded_and_what_was_there_stays(bucket):
    storage = FsspecStorage("s3://b")
    storage.put("f", [b"before"])
    with pytest.raises(OSError, match="the arena is gone"):
        storage.put("f", breaks_off())
    assert (bucket.objects, bucket.discarded) == ({"b/f": b"before"}, ["b/f"])


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.put("f", [b"x"]),
        lambda s: s.read("f"),
        lambda s: s.list("j"),
        lambda s: s.remove("f"),
    ],
)
def test_an_error_of_a_client_is_an_os_error(bucket, call):
    bucket.refuses = True
    with pytest.raises(OSError, match="slow down"):
        call(FsspecStorage("s3://b"))


@pytest.mark.parametrize(
    ("number", "counts"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_a_file_system_that_syncs_no_folder_can_be_written(tmp_path, monkeypatch, number, counts):
    def fsync(fd, real=os.fsync):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, "no sync of folders")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    storage = LocalStorage(tmp_path)
    if counts:
        with pytest.raises(OSError, match="no sync"):
            storage.put("f", [b"x"])
    else:
        assert storage.put("f", [b"x"]) == 1


def test_a_file_that_is_being_written_is_not_listed(tmp_path):
    storage, seen = LocalStorage(tmp_path), []

    def chunks():
        yield b"first"
        seen.append(storage.list("j"))

    storage.put("j/f", chunks())
    assert seen == [[]]
    assert storage.list("j") == ["f"]


def test_the_url_says_which_storage_it_is(tmp_path):
    assert isinstance(open_storage(str(tmp_path)), LocalStorage)
    assert isinstance(open_storage(f"file://{tmp_path}"), LocalStorage)
    assert isinstance(open_storage("memory://x"), FsspecStorage)
    with pytest.raises(UsageError, match="checkpoint storage nonsense://x"):
        open_storage("nonsense://x")


class Clock:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_rate_limit_spreads_bytes_over_time():
    clock = Clock()
    limit = RateLimit(1000, sleep=clock.sleep, clock=clock, chunk_bytes=100)
    pieces = [bytes(piece) for piece in limit(memoryview(b"x" * 950))]
    assert b"".join(pieces) == b"x" * 950
    assert max(map(len, pieces)) == 100
    assert clock.now == pytest.approx(100.9)  # the last piece goes when the one before it is paid for
    list(limit(memoryview(b"x" * 100)))
    assert clock.now == pytest.approx(100.95)


def test_time_that_passed_unused_is_not_saved_up():
    clock = Clock()
    limit = RateLimit(1000, sleep=clock.sleep, clock=clock, chunk_bytes=100)
    clock.now += 60
    list(limit(memoryview(b"x" * 300)))
    assert clock.now == pytest.approx(160.2)


def test_without_a_limit_nobody_sleeps():
    limit = RateLimit(0, sleep=lambda seconds: pytest.fail("slept"))
    assert b"".join(limit(memoryview(b"abc"))) == b"abc"
