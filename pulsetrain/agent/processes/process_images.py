"""Dumps the ranks of a node as they stand, with CRIU, and restores the same processes on the same host.

Each rank is dumped by itself, and so is the store at which they met. Connections between them are restored
because all of them come back: each waits in CRIU until every other one is there too.

Pages of memory are kept by content. Those of the last image stay, so that the next one adds its changes only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from pulsetrain.agent.processes import image_room
from pulsetrain.agent.processes.image_blocks import ImageBlocks
from pulsetrain.agent.processes.tcp_repair import end_repair
from pulsetrain.agent.processes.zygote import Zygote
from pulsetrain.agent.processes.zygote_protocol import RankProcess
from pulsetrain.collectors.machine.gpu_processes import memory_by_pid
from pulsetrain.core.errors import PulsetrainError, Unavailable
from pulsetrain.diagnostics import process_dump

log = structlog.get_logger()

DUMP_TIMEOUT_S = 600.0  # for one process. To end CRIU in the middle may leave that as it must not be
RESTORE_TIMEOUT_S = 60.0  # or as long as all processes would take one by one, at the pace of the dump
STOP_TIMEOUT_S = 5.0
LOOK_S = 0.02
SQUASHES = "squash = true in its configuration, and CRIU cannot dump the memory for that"
"""It is as large as all buffers that ranks may ever need: tens of TB, without pages. CRIU notes each."""
MANIFEST = "manifest.json"
BOOT = Path("/proc/sys/kernel/random/boot_id")
DUMP = ("--tcp-established", "--file-locks", "--link-remap", "--network-lock", "skip", "--leave-stopped")
RESTORE = ("--tcp-established", "--file-locks", "--link-remap", "-d", "-S")
# CRIU runs this at each stage. Connections must not go on before both of their ends are there.
GATE = """#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = post-restore ] || exit 0
folder=$(dirname "$0")
: >"$folder/ready.$CRTOOLS_INIT_PID"
tries=0
while [ ! -e "$folder/go" ]; do
    [ -e "$folder/stop" ] && exit 1
    tries=$((tries + 1))
    [ "$tries" -gt TRIES ] && exit 1
    sleep 0.04
done
"""
GATE_POLL_S = 0.04

Run = Callable[[Sequence[str], float], tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an image is. `processes` are pids by name, `files` SHA-256 by name.

    `outputs` are the two log files of each process, "" where it has none. `boot` tells one start of the host
    from another: clocks of processes do not go on after a new one. `bytes` is what CRIU wrote, `stored_bytes`
    what is left with each page counted once, and `new_bytes` what of that the last image had not. The dump
    took `dump_s`.
    """

    name: str
    host: str
    boot: str
    attempt: int
    processes: Mapping[str, int]
    outputs: Mapping[str, Sequence[str]]
    files: Mapping[str, str]
    bytes: int
    stored_bytes: int = 0
    new_bytes: int = 0
    dump_s: float = 0.0

    @property
    def restore_limit_s(self) -> float:
        """How long a restore may take."""
        return max(RESTORE_TIMEOUT_S, self.dump_s * len(self.processes))


class ProcessImages:
    """The images of a node's ranks, one at a time, in its `folder`. `squashes`: its ranks may squash."""

    def __init__(
        self,
        folder: Path,
        *,
        allowed: str = "auto",
        squashes: bool = False,
        run: Run | None = None,
        gpu_memory: Callable[[], Mapping[int, int]] = memory_by_pid,
    ) -> None:
        self._folder, self._allowed, self._run = folder / "images", allowed, run or _run
        self._squashes = squashes
        self._gpu_memory = gpu_memory
        self._blocks = ImageBlocks(folder / "image-blocks")

    @functools.cached_property
    def lacks(self) -> str:
        """What the host lacks, "" where it can. It is asked once."""
        if self._allowed != "auto":
            return 'images = "never" in its configuration'
        return SQUASHES if self._squashes else process_dump.lacks()

    @property
    def possible(self) -> bool:
        """Whether processes can be dumped here."""
        return not self.lacks

    def dump(
        self,
        name: str,
        attempt: int,
        processes: Mapping[str, int],
        outputs: Mapping[str, Sequence[str]],
        *,
        why_end: Callable[[], str] = str,
    ) -> Manifest:
        """Dump processes by their names, and leave them stopped. Every other image is removed.

        All of them are stopped before the first is dumped. Else one of them would answer another that is in
        its image already, and what is restored would wait for that answer. One that uses a GPU goes on until
        its own dump: the driver's part of that needs it to run.

        `why_end` says before and after each process why nobody wants the image any more, "" for no reason.
        CRIU itself is not ended: that may leave its process as it must not be.

        Raises `Unavailable` where one cannot be dumped, or where the disk may be too full for all of them.
        Then they run on, and no image is left.
        """
        if not self.possible:
            raise Unavailable(f"processes cannot be dumped here: {self.lacks}")
        self.clear()
        folder, began_s = self._folder / name, time.monotonic()
        try:
            self._refuse_without_room(processes)
            stop(pid for pid in processes.values() if not _uses_gpu(pid))
            refuse_outsiders(processes)
            folder.mkdir(parents=True, mode=0o700)
            files: dict[str, str] = {}
            sizes: list[tuple[int, int]] = []
            for process, pid in processes.items():
                _refuse(why_end())
                self._dump_one(pid, process, folder / process)
                _refuse(why_end())
                found = _images(folder / process)
                files |= {str(p.relative_to(folder)): _digest(p) for p in found}
                sizes += [self._keep(name, p) for p in found]
            self._blocks.delete("", but=f"{name}/")
            own_bytes = sum(p.stat().st_size for process in processes for p in _images(folder / process))
            manifest = Manifest(
                name=name,
                host=socket.gethostname(),
                boot=BOOT.read_text().strip(),
                attempt=attempt,
                processes=dict(processes),
                outputs={key: list(paths) for key, paths in outputs.items()},
                files=files,
                bytes=sum(size for size, _ in sizes),
                stored_bytes=own_bytes + self._blocks.stored_bytes(f"{name}/"),
                new_bytes=sum(new for _, new in sizes),
                dump_s=time.monotonic() - began_s,
            )
            written = folder / f"{MANIFEST}.new"
            written.write_text(json.dumps(asdict(manifest)))
            written.rename(folder / MANIFEST)
        except Exception as error:  # whatever it was: processes that stand for ever would hold up their job
            let_go(processes.values())
            self.clear()
            self._forget_pages()
            raise Unavailable(f"image: {_why(error)}") from error
        return manifest

    def read(self, name: str) -> Manifest:
        """The manifest of an image that can be restored now. Raises `Unavailable` where it cannot.

        One that never can is removed, with its pages. Any other stays: perhaps the disk is full.
        """
        folder = self._folder / name
        try:
            manifest = Manifest(**json.loads((folder / MANIFEST).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise Unavailable(f"image {name!r}: {error}") from error
        try:
            _check_host(manifest)
            self._fetch(manifest, folder)
        except OSError as error:
            _drop_pages(folder)
            raise Unavailable(f"image {name!r}: {error}") from error
        except Unavailable:
            self.clear()
            self._forget_pages()  # or the next image would have the damaged ones, too
            raise
        return manifest

    def keeps(self, name: str) -> bool:
        """Whether an image is here that may be restored yet."""
        return (self._folder / name / MANIFEST).is_file()

    def _fetch(self, manifest: Manifest, folder: Path) -> None:
        """Bring the pages back into the image's folder. Raises `Unavailable` where a file is another one,
        `OSError` where it cannot be read or written now."""
        for file, digest in manifest.files.items():
            if _has_pages(Path(file)):
                self._blocks.get(f"{manifest.name}/{file}", folder / file)
            if not (folder / file).is_file() or _digest(folder / file) != digest:
                raise Unavailable(f"image {manifest.name!r}: {file} is not what was written")

    def restore(
        self, manifest: Manifest, zygote: Zygote, on_exit: Mapping[str, Callable[[int], None]]
    ) -> None:
        """Bring all processes back as children of the zygote, or none. Raises `Unavailable`.

        `on_exit` is called with the exit code of each process once it ends. The image stays in any case.
        """
        folder = self._folder / manifest.name
        taken = [pid for pid in manifest.processes.values() if _is_there(pid)]
        if taken:
            _drop_pages(folder)
            raise Unavailable(f"image {manifest.name!r}: pid {taken[0]} is in use")
        for mark in ("go", "stop", *(f"ready.{pid}" for pid in manifest.processes.values())):
            (folder / mark).unlink(missing_ok=True)
        gate = folder / "gate"
        limit_s = manifest.restore_limit_s
        gate.write_text(GATE.replace("TRIES", str(int(limit_s / GATE_POLL_S))))
        gate.chmod(0o700)
        codes: dict[str, int] = {}
        started: dict[str, int] = {}
        try:
            for process in manifest.processes:
                started[process] = _begin(folder / process, gate, zygote, process, codes)
            _await(
                lambda: all((folder / f"ready.{p}").exists() for p in manifest.processes.values()),
                codes,
                limit_s,
            )
            for process, pid in manifest.processes.items():
                zygote.adopt(pid, on_exit[process])
            (folder / "go").touch()
            _await(lambda: len(codes) == len(started), codes, limit_s)
            let_go(manifest.processes.values())  # they were stopped when they were dumped
        except Exception as error:  # whatever it was, nothing of it may be left
            with contextlib.suppress(OSError):
                (folder / "stop").touch()
            _end(zygote, list(started.values()), list(manifest.processes.values()))
            _drop_pages(folder)
            raise Unavailable(f"image {manifest.name!r}: {_why(error)}{_said(folder)}") from error

    def clear(self) -> None:
        """Remove every image. Pages of the last one stay until the next."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)

    def tidy(self) -> None:
        """Remove what an earlier agent has left that no restore can use, with its pages.

        That is an image without a manifest, of an agent that was killed, and one from before the host was
        started anew. Its pages may not have reached the disk.
        """
        if self._allowed != "auto" or any(map(_is_of_this_boot, self._folder.glob(f"*/{MANIFEST}"))):
            return
        if self._folder.exists():
            log.info("an image that cannot be restored is removed", folder=str(self._folder))
        self.clear()
        self._forget_pages()

    def _forget_pages(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._blocks.delete("")

    def _keep(self, name: str, file: Path) -> tuple[int, int]:
        """Take pages out of the image's folder. The file's size, and what of it is new."""
        size = file.stat().st_size
        if not _has_pages(file):
            return size, size
        kept = self._blocks.put(f"{name}/{file.parent.name}/{file.name}", file)
        file.unlink()
        return size, kept.new_bytes

    def _refuse_without_room(self, processes: Mapping[str, int]) -> None:
        """Where only the last image's pages are in the way, they go. Raises `Unavailable`."""
        memory = self._memory(processes)
        data = self._folder.parent
        data.mkdir(parents=True, exist_ok=True)
        try:
            image_room.refuse_without_room(data, memory)
        except Unavailable:
            if not self._blocks.disk_bytes():
                raise
            self._forget_pages()
            image_room.refuse_without_room(data, memory)

    def _memory(self, processes: Mapping[str, int]) -> list[image_room.Memory]:
        """What dumps would write. A dump brings what a process has on GPUs to the host first."""
        uses_gpu = [name for name, pid in processes.items() if _uses_gpu(pid)]
        on_gpus = self._gpu_memory() if uses_gpu else {}
        found = []
        for name, pid in processes.items():
            tree = [process.pid for process in _tree(pid)]
            memory = image_room.memory_of(tree)
            if name in uses_gpu:
                more = image_room.with_gpus(memory, tree, on_gpus)
                if more is None:
                    log.warning("image_room_unknown", process=name, why="NVML does not tell its GPU memory")
                memory = more or memory
            found.append(memory)
        return found

    def _dump_one(self, pid: int, process: str, folder: Path) -> None:
        folder.mkdir()
        command = (_criu(), "dump", "-t", str(pid), "-D", str(folder), "-v1", "-o", "dump.log", *DUMP)
        status, said = self._run(command, DUMP_TIMEOUT_S)
        if status:
            raise Unavailable(f"{process}: {last_error(_text(folder / 'dump.log') or said)}")


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, OSError | ValueError | PulsetrainError) else repr(error)


def _refuse(why: str) -> None:
    if why:
        raise Unavailable(why)


def refuse_outsiders(processes: Mapping[str, int]) -> None:
    """Raises `Unavailable` where a process has a TCP connection to another one than these.

    Who is at its other end does not stand still meanwhile. What is restored would believe in a connection
    that is gone. So it does where the connections of one cannot be seen.
    """
    connections = [(name, each) for name, pid in processes.items() for each in _connections(pid)]
    own = {_end_of(each.laddr) for _, each in connections}
    for name, each in connections:
        if each.status == psutil.CONN_ESTABLISHED and _end_of(each.raddr) not in own:
            address, port = _end_of(each.raddr)
            raise Unavailable(f"{name} has a connection to {address}:{port}, which would be lost")


def _connections(pid: int) -> list[Any]:
    """The TCP sockets of a process and its children."""
    found: list[Any] = []
    for process in _tree(pid):
        try:
            found += process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        except psutil.Error as error:
            if not _has_ended(process):
                raise Unavailable(f"the connections of pid {process.pid} cannot be seen: {error}") from error
    return found


def _end_of(address: Any) -> tuple[str, int]:
    return str(address.ip).removeprefix("::ffff:"), int(address.port)


def stop(pids: Iterable[int]) -> None:
    """Stop processes and their children. Raises `Unavailable` where one goes on for `STOP_TIMEOUT_S`."""
    pids, deadline_s = list(pids), time.monotonic() + STOP_TIMEOUT_S
    while moving := [process for pid in pids for process in _tree(pid) if not _is_stopped(process)]:
        if time.monotonic() > deadline_s:
            raise Unavailable(f"pid {moving[0].pid} does not stop within {STOP_TIMEOUT_S:g} s")
        for process in moving:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        time.sleep(LOOK_S)


def _uses_gpu(pid: int) -> bool:
    """Whether a process, or one that it has started, has a device of NVIDIA's driver open."""
    for process in _tree(pid):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                if os.readlink(link).startswith("/dev/nvidia"):
                    return True
    return False


def let_go(pids: Iterable[int]) -> None:
    """Let stopped processes and their children run on, with the connections that they had."""
    processes = families(pids)
    for process in processes:
        try:
            end_repair(process.pid)
        except OSError as error:
            log.warning("connections_not_let_go", pid=process.pid, error=str(error))
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.resume()


def families(pids: Iterable[int]) -> list[psutil.Process]:
    """Processes and all that they have started."""
    return [process for pid in pids for process in _tree(pid)]


def _tree(pid: int) -> list[psutil.Process]:
    """A process and all that it has started, those in other groups included. None where it is gone."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _is_stopped(process: psutil.Process) -> bool:
    """Whether it does not run now, as one that has ended does not."""
    with contextlib.suppress(psutil.Error):
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


def last_error(text: str) -> str:
    """The error that a log of CRIU ends with because of, in one line.

    >>> last_error("(00.1) Error (criu/util.c:1): rlimit: no\\n(00.2) Error (criu/a.c:9): no\\n(00.3) x\\n")
    'Error (criu/a.c:9): no'
    >>> last_error(" 23083: Error (criu/files-reg.c:2175): File tmp/log has bad size 3534 (expect 1821)")
    'Error (criu/files-reg.c:2175): File tmp/log has bad size 3534 (expect 1821)'
    """
    lines = [line[line.index("Error (") :] for line in text.splitlines() if "Error (" in line]
    telling = [line for line in lines if "FAILED" not in line and "rlimit" not in line]
    return (telling or lines or [text.strip() or "it said nothing"])[0][:200]


def ring_of(pid: int) -> int:
    """An open file of the ring of a restored rank. Raises `Unavailable` where it has none."""
    return _memory_of(pid, "ring")


def arena_of(pid: int) -> int:
    """An open file of the checkpoint arena of a restored rank. Raises `Unavailable` where it has none."""
    return _memory_of(pid, "arena")


def _memory_of(pid: int, what: str) -> int:
    folder = Path(f"/proc/{pid}/fd")
    try:
        for link in folder.iterdir():
            if os.readlink(link).startswith(f"/memfd:pulsetrain-{what}"):
                return os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"pid {pid}: its {what} cannot be opened: {error.strerror}") from error
    raise Unavailable(f"pid {pid}: it has no {what}")


def clock_ahead_ns(pid: int, proc: Path = Path("/proc")) -> int:
    """How far the monotonic clock of a process is ahead of ours.

    CRIU restores a process in a time namespace, in which this clock goes on from where it was dumped.
    """
    return _clock_ns(proc / str(pid)) - _clock_ns(proc / "self")


def _clock_ns(process: Path) -> int:
    """Offset of its monotonic clock from the host's. 0 where the kernel has no time namespaces."""
    with contextlib.suppress(OSError, ValueError):
        for line in (process / "timens_offsets").read_text().splitlines():
            clock, seconds, ns = line.split()
            if clock == "monotonic":
                return int(seconds) * 1_000_000_000 + int(ns)
    return 0


def _begin(folder: Path, gate: Path, zygote: Zygote, process: str, codes: dict[str, int]) -> int:
    """Start CRIU as a child of the zygote, so that what it restores is one too. Its pid."""
    log_file = os.open(folder / "criu.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    argv = (_criu(), "restore", "-D", str(folder), "-v1", "-o", "restore.log", *RESTORE)
    restoring = RankProcess(
        argv=(*argv, "--action-script", str(gate)),
        mode="exec",
        env={},
        cwd=folder,
        stdout=log_file,
        stderr=log_file,
        files={},
    )
    try:
        return zygote.spawn(restoring, lambda code: codes.__setitem__(process, code))
    finally:
        os.close(log_file)


def _await(holds: Callable[[], bool], codes: Mapping[str, int], limit_s: float) -> None:
    """Wait until it holds. Raises `Unavailable` where a restore ends with an error, or takes too long."""
    deadline_s = time.monotonic() + limit_s
    while True:
        held = holds()
        failed = next((name for name, code in dict(codes).items() if code), None)
        if failed is not None:
            raise Unavailable(f"{failed} was not restored")
        if held:
            return
        if time.monotonic() > deadline_s:
            raise Unavailable(f"not restored in {limit_s:g} s")
        time.sleep(LOOK_S)


def _end(zygote: Zygote, begun: Sequence[int], restored: Sequence[int]) -> None:
    """End CRIU, and then what it has restored so far. A process of that that stayed would hold its pid."""
    deadline_s = time.monotonic() + 2.0
    while time.monotonic() < deadline_s and any(map(_is_there, (*begun, *restored))):
        time.sleep(LOOK_S)
    for pid in begun:
        zygote.signal(pid, signal.SIGKILL)
    while time.monotonic() < deadline_s + 2.0 and any(map(_is_there, begun)):
        time.sleep(LOOK_S)
    for pid in restored:
        end_tree(pid, parent=zygote.pid)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def end_tree(pid: int, *, parent: int) -> None:
    """Kill a process and all that it has started. One that is not a child of `parent` is left alone."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        if root.ppid() == parent:
            for process in (*root.children(recursive=True), root):
                process.kill()


def _said(folder: Path) -> str:
    """What CRIU wrote of the failure."""
    texts = [_text(path) for path in sorted(folder.glob("*/restore.log"))]
    said = next((last_error(text) for text in texts if "Error (" in text.replace("rlimit", "")), "")
    return f" ({said})" if said else ""


def _criu() -> str:
    return shutil.which("criu") or "criu"


def _check_host(manifest: Manifest) -> None:
    """Raises `Unavailable` for an image of another host, or from before this one was started anew.

    Each start of each host has an id of its own. Its name may change meanwhile.
    """
    if manifest.boot != BOOT.read_text().strip():
        why = "it is of another host, or the host was started anew since"
        raise Unavailable(f"image {manifest.name!r} of host {manifest.host!r}: {why}")


def _drop_pages(folder: Path) -> None:
    """Free the disk of pages that were fetched for a restore. Their blocks stay."""
    for file in filter(_has_pages, folder.glob("*/*.img")):
        file.unlink(missing_ok=True)


def _is_of_this_boot(manifest: Path) -> bool:
    try:
        return bool(json.loads(manifest.read_text())["boot"] == BOOT.read_text().strip())
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.img"))


def _has_pages(file: Path) -> bool:
    return file.name.startswith("pages-")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _run(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, f"{type(error).__name__}: {error}"
    return done.returncode, done.stdout + done.stderr
