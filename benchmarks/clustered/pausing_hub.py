"""`pulsetrain serve` that stands still in a chosen state of its controller, until it is killed.

Where a file `armed/STATE` exists in the folder `PAUSING_HUB`, the hub creates `reached/STATE-PID` as soon as
a recovery is in that state, and does nothing more.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PAUSING_HUB", "."))
LONGEST_S = 30.0


def stand_still(state: str) -> None:
    """Do nothing more, where this state is armed."""
    with contextlib.suppress(FileNotFoundError):
        (FOLDER / "armed" / state).unlink()
        (FOLDER / "reached" / f"{state}-{os.getpid()}").touch()
        time.sleep(LONGEST_S)


def main() -> None:
    """The command line, with states in which it stands still."""
    from pulsetrain import cli
    from pulsetrain.recovery import launch
    from pulsetrain.recovery.state import JobState

    enter, spend, result = JobState.enter, JobState.spend_eviction, launch._result

    def pausing_enter(self: Any, phase: Any) -> None:
        enter(self, phase)
        if self.recovery is not None:
            stand_still(str(phase))

    async def pausing_spend(self: Any) -> None:
        stand_still("evicting")
        await spend(self)
        stand_still("evicted")

    def pausing_result(job: Any, *rest: Any) -> Any:
        if job.recovery is not None:
            stand_still("launched")
        return result(job, *rest)

    JobState.enter, JobState.spend_eviction = pausing_enter, pausing_spend  # type: ignore[method-assign]
    launch._result = pausing_result
    cli.main()


if __name__ == "__main__":
    main()
