"""Which disks of a machine its job uses: those beneath its folders, as far as the kernel tells.

What a script opens elsewhere is not known. So a disk that is mounted anywhere may be in use too.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Use = Literal["used", "maybe", "unused"]

LOOK_S = 10.0  # between two looks. A disk that is gone is remembered
_OF_OTHERS = ("/var/lib/kubelet/", "/snap/", "/media/", "/run/media/")  # mounts of pods, packages and people
_WITHOUT_DISK = re.compile(
    "tmpfs|ramfs|devtmpfs|proc|sysfs|nfs4?|lustre|ceph|beegfs|gpfs|cifs|smb3|wekafs|fuse\\..*"
)
_NAMESPACE = re.compile(r"(nvme\d+)(?:c\d+)?(n\d+.*)")  # the kernel may name the way to it: nvme0c1n1
_CONTROLLER = re.compile(r"nvme\d+")
_OCTAL = re.compile(r"\\([0-7]{3})")


_OF_MANY = ("btrfs", "zfs", "bcachefs")  # file systems that do not tell all their disks


@dataclass(frozen=True, kw_only=True)
class _Mount:
    point: str
    number: str
    kind: str
    source: str

    def holds(self, folder: str) -> bool:
        return self.point == "/" or f"{folder}/".startswith(f"{self.point}/")


class UsedDisks:
    """Tells disks beneath `folders` and `/` from others. Symbolic links are followed by `start`.

    Where a folder is on a file system whose disks cannot be told, as on an overlay, any disk may be used.
    """

    def __init__(
        self,
        folders: Iterable[str | Path],
        *,
        sys_root: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = ["/", *(str(folder) for folder in folders if str(folder) and "://" not in str(folder))]
        self._sys, self._proc, self._clock_s = sys_root, proc, clock_s
        self._folders: list[str] | None = None
        self._opaque, self._hidden = True, False
        self._used: set[str] = set()
        self._mounted: set[str] = set()
        self._known: set[str] = set()
        self._looked_s: float | None = None

    def start(self) -> None:
        """Find the folders, on a thread: a network file system may hang."""
        threading.Thread(target=self.resolve, name="used disks", daemon=True).start()

    def resolve(self) -> None:
        """Find the folders."""
        self._folders = [os.path.realpath(folder) for folder in self._given]

    def look(self) -> None:
        """Learn what is there, unless that was done a moment ago."""
        now_s = self._clock_s()
        folders = self._folders
        if folders is None or (self._looked_s is not None and now_s - self._looked_s < LOOK_S):
            return
        self._looked_s = now_s
        mounts = list(_mounts(self._proc))
        own = [beneath for folder in folders if (beneath := _beneath(mounts, folder))]
        self._used |= self._stacks(self._name(mount) for mount in own)
        self._used |= self._stacks(_swaps(self._proc))
        others = [mount for mount in mounts if not mount.point.startswith(_OF_OTHERS)]
        self._mounted |= self._stacks(self._name(mount) for mount in others)
        self._known |= set(_names(self._sys / "class" / "block")) | set(_names(self._sys / "class" / "nvme"))
        self._hidden = any(mount.kind in _OF_MANY for mount in others)
        self._opaque = len(own) < len(folders) or any(self._is_opaque(mount) for mount in own)

    def use(self, device: str) -> Use:
        """Whether the job uses a block device or NVMe controller, by the kernel's name."""
        self.look()
        name = _NAMESPACE.sub(r"\1\2", device)
        if name in self._used:
            return "used"
        may_be = self._opaque or self._hidden or name in self._mounted or name not in self._known
        return "maybe" if may_be else "unused"

    def _name(self, mount: _Mount) -> str:
        """The block device of a file system, "" for none. One of btrfs tells no number."""
        folder = self._sys / "dev" / "block" / mount.number
        if folder.exists():
            return folder.resolve().name
        return os.path.basename(os.path.realpath(mount.source)) if mount.source.startswith("/dev/") else ""

    def _is_opaque(self, mount: _Mount) -> bool:
        name = self._name(mount)
        many = mount.kind in _OF_MANY or name.startswith("loop")
        return many or not (name or _WITHOUT_DISK.fullmatch(mount.kind))

    def _stacks(self, names: Iterable[str]) -> set[str]:
        """These devices with all that they are made of: disks of partitions, members of RAIDs and volumes."""
        found: set[str] = set()
        todo = [name for name in names if name]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self._below(name)
        return found

    def _below(self, name: str) -> list[str]:
        folder = (self._sys / "class" / "block" / name).resolve()
        below = _names(folder / "slaves")
        if (folder / "partition").exists():
            below.append(folder.parent.name)
        if namespace := _NAMESPACE.fullmatch(name):
            owner = (folder / "device").resolve()
            ways = [each for each in (owner.name, *_names(owner)) if _CONTROLLER.fullmatch(each)]
            below += ways or [namespace[1]]
        return below


def _mounts(proc: Path) -> Iterator[_Mount]:
    """File systems, in the order in which they were mounted. Source: proc_pid_mountinfo(5)."""
    try:
        lines = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        head, _, tail = line.partition(" - ")
        words, rest = head.split(), tail.split()
        if len(words) > 4 and len(rest) > 1:
            point = _OCTAL.sub(lambda m: chr(int(m[1], 8)), words[4])
            yield _Mount(point=point, number=words[2], kind=rest[0], source=rest[1])


def _beneath(mounts: list[_Mount], folder: str) -> _Mount | None:
    """The file system of a folder: the one with the longest path, of several the last."""
    holding = [mount for mount in reversed(mounts) if mount.holds(folder)]
    return max(holding, key=lambda mount: len(mount.point), default=None)


def _swaps(proc: Path) -> list[str]:
    try:
        lines = (proc / "swaps").read_text().splitlines()[1:]
    except OSError:
        return []
    return [os.path.basename(line.split()[0]) for line in lines if line.startswith("/dev/")]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
