"""Where checkpoints are persisted: a local folder, or anything that fsspec knows.

A file appears whole or not at all. A local file is written under a temporary name, synced and renamed. On an
object store a put is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

import fsspec
from fsspec.spec import AbstractBufferedFile

from pulsetrain.core.errors import CorruptData, PulsetrainError, UsageError

Sleep = Callable[[float], None]
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # network file systems that sync no folder


class Storage(Protocol):
    """Files below one root, named by paths with slashes. Every call raises `OSError` when storage fails."""

    def put(self, path: str, chunks: Iterable[memoryview | bytes]) -> int:
        """Write a whole file durably. Returns its size in bytes."""

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        """A range of a file, by default all of it. Raises `FileNotFoundError` where there is none."""

    def read_into(self, path: str, offset: int, target: memoryview) -> None:
        """Fill `target` from a file. Raises `CorruptData` where the file is shorter."""

    def list(self, folder: str) -> list[str]:
        """Names of files and folders directly in `folder`, sorted. Empty where there is no such folder."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it. No error where there is none."""


def open_storage(url: str) -> Storage:
    """The storage of a path, a file:// URL, or an fsspec URL (s3://, gs://, hdfs://, memory://).

    Raises `UsageError` for a URL that fsspec cannot open.
    """
    if "://" not in url:
        return LocalStorage(Path(url).expanduser())
    scheme, rest = url.split("://", 1)
    if scheme == "file":
        return LocalStorage(Path(rest))
    try:
        return FsspecStorage(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"checkpoint storage {url}: {error}") from error


def why_unwritable(url: str) -> str:
    """Why nothing can be written to a folder, which is made if it is missing. "" where it can.

    "" also for a storage that is no folder: its bucket may be writable in part.
    """
    storage = open_storage(url)
    return storage.why_unwritable() if isinstance(storage, LocalStorage) else ""


class LocalStorage:
    """A folder. Files and folders are synced before they count."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def why_unwritable(self) -> str:
        """Why nothing can be written to it, "" where it can. The folder is made if it is missing."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return error.strerror or type(error).__name__
        return "" if os.access(self._root, os.W_OK) else "Permission denied"

    def put(self, path: str, chunks: Iterable[memoryview | bytes]) -> int:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            with partial.open("wb", buffering=0) as file:
                size = sum(_write(file, chunk) for chunk in chunks)
                os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        _sync_folder(target.parent)
        return size

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        with (self._root / path).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def read_into(self, path: str, offset: int, target: memoryview) -> None:
        with (self._root / path).open("rb", buffering=0) as file:
            file.seek(offset)
            done = 0
            while done < len(target):
                got = file.readinto(target[done:])
                if not got:
                    raise CorruptData(f"{path} ends {len(target) - done} bytes early")
                done += got

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(p.name for p in (self._root / folder).iterdir() if not p.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, path: str) -> None:
        target = self._root / path
        if target.is_dir() and not target.is_symlink():  # behind a link is what somebody has moved away
            for child in list(target.iterdir()):
                self.remove(str(child.relative_to(self._root)))
            with contextlib.suppress(FileNotFoundError):
                target.rmdir()
        else:
            target.unlink(missing_ok=True)


class FsspecStorage:
    """Any file system that fsspec knows, with one put for each file."""

    def __init__(self, url: str) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(url)

    def put(self, path: str, chunks: Iterable[memoryview | bytes]) -> int:
        target = self._path(path)
        size = 0
        with _as_os_error(path):
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            file = self._fs.open(target, "wb")
            try:
                for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
                file.close()
            except BaseException:
                self._discard(file, target)
                raise
        return size

    def _discard(self, file: IO[bytes], target: str) -> None:
        """Leave no part of a file under its name. What an upload would have replaced stays."""
        with contextlib.suppress(Exception):
            if isinstance(file, AbstractBufferedFile):  # closing it would complete the upload
                file.closed = True
                file.discard()
                return
            with contextlib.suppress(Exception):
                file.close()
            self._fs.rm(target)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes:
        with _as_os_error(path), self._fs.open(self._path(path), "rb") as file:
            file.seek(offset)
            return bytes(file.read(size))

    def read_into(self, path: str, offset: int, target: memoryview) -> None:
        data = self.read(path, offset, len(target))
        if len(data) != len(target):
            raise CorruptData(f"{path} ends {len(target) - len(data)} bytes early")
        target[:] = data

    def list(self, folder: str) -> list[str]:
        try:
            with _as_os_error(folder):
                self._fs.invalidate_cache()
                paths = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in paths)

    def remove(self, path: str) -> None:
        with _as_os_error(path):
            if self._fs.exists(self._path(path)):
                self._fs.rm(self._path(path), recursive=True)

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else str(self._root)


class RateLimit:
    """Passes chunks on at no more than `bytes_per_s` on average. 0: as fast as possible."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        sleep: Sleep = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        chunk_bytes: int = 4 << 20,
    ) -> None:
        self._rate, self._sleep, self._clock, self._chunk = bytes_per_s, sleep, clock, chunk_bytes
        self._due = clock()
        self.passed_bytes = 0

    def __call__(self, data: memoryview) -> Iterable[memoryview]:
        """The same bytes in pieces, each when it may go."""
        for start in range(0, len(data), self._chunk):
            piece = data[start : start + self._chunk]
            if self._rate:
                now = self._clock()
                if self._due > now:
                    self._sleep(self._due - now)
                self._due = max(self._due, now) + len(piece) / self._rate
            yield piece
            self.passed_bytes += len(piece)


def _write(file: IO[bytes], chunk: memoryview | bytes) -> int:
    view, done = memoryview(chunk), 0
    while done < len(view):
        done += file.write(view[done:])
    return done


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Clients of object stores raise exceptions of their own: callers expect `OSError`."""
    try:
        yield
    except (OSError, PulsetrainError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{path}: {error!r}") from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(fd)
