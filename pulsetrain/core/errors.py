"""Every error that Pulsetrain raises on purpose.

PulsetrainError
├── UsageError            what the user gave cannot be used: commands exit 2 with its one line
│   ├── ConfigError       a key or value in the TOML file, the environment or a flag
│   ├── AuthError         the token is missing or wrong
│   └── FolderInUse       another process has the folder
├── Unavailable           something outside is away for now (hub, broker, disk): try again
├── Refused               the store answers, and does not take or answer this
├── CorruptData           bytes that fail their checksum or their format
├── ProgramRefused        the program that an update wants is not on this node
├── SchemaMismatch        a batch whose columns or types are not the record's
└── CheckpointError       a save or a restore that could not be done
    ├── Unrestorable      a step that no source has whole: trying again does not help
    ├── NotReshardable    what ranks have saved fits their own number of ranks only
    └── WorldNeeded       an agent must be told all nodes of its world
"""

from __future__ import annotations


class PulsetrainError(Exception):
    """Root of the tree. The message is one line that names the value and what is allowed."""


class UsageError(PulsetrainError):
    """What the user gave cannot be used."""


class ConfigError(UsageError):
    """A configuration key or value is unknown or out of range. The message holds the full key path."""


class AuthError(UsageError):
    """The token is missing or wrong."""


class FolderInUse(UsageError):
    """A folder that one process at a time may use is another's. The message names both."""


class Unavailable(PulsetrainError):
    """A service or a device is away for now."""


class Refused(PulsetrainError):
    """The store answers, and refuses a statement or rows. It may take them later, in smaller parts, or
    never."""


class CorruptData(PulsetrainError):
    """Bytes that fail their checksum or do not follow their format."""


class ProgramRefused(PulsetrainError):
    """What an update wants to launch is not there."""


class RanksRun(PulsetrainError):
    """Ranks that were to end run on, because nothing would be left of what they did."""


class SchemaMismatch(PulsetrainError):
    """A batch that does not fit the record it claims to be."""


class CheckpointError(PulsetrainError):
    """A checkpoint could not be saved or restored."""


class MemoryShort(CheckpointError):
    """There is no memory for a checkpoint now. The message holds the numbers."""


class WorldNeeded(CheckpointError):
    """This node needs nodes of the world that it was not told."""


class NotReshardable(CheckpointError):
    """What ranks have saved cannot be put together for another number of ranks."""


class Unrestorable(CheckpointError):
    """Every source of a rank's step answered, and none has it whole."""

    def __init__(self, message: str, *, rank: int, step: int) -> None:
        super().__init__(message)
        self.rank, self.step = rank, step
