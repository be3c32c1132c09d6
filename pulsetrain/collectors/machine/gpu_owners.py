"""Which GPUs of a machine a job uses, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuOwners:
    """GPUs are named by their UUID and by their PCI address, such as `0000:9b:00`.

    `foreign` are other jobs' for certain, and `own` the job's. `usable` are the addresses of all that this
    process may use, None where that is not known. `doubtful`: the job does not use all GPUs of the machine,
    and a GPU that is not in `own` may be another's. `others`: there are GPUs of other jobs.
    """

    foreign: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    usable: frozenset[str] | None = None
    doubtful: bool = False
    others: bool = False

    @property
    def none(self) -> bool:
        """Whether the job uses no GPU."""
        return self.usable is not None and not self.usable

    def is_foreign(self, kind: str, device: str) -> bool:
        """Whether a sign of this kind is certainly of a GPU of another job."""
        if device in self.foreign:
            return True
        named = kind == "xid" and ":" in device  # else by a UUID
        return named and self.usable is not None and device not in self.usable

    def is_doubtful(self, kind: str, device: str) -> bool:
        """Whether a sign of this kind may be of a GPU of another job."""
        return self.doubtful and (kind == "xid" or device.startswith("GPU")) and device not in self.own
