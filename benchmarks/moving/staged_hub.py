"""`pulsetrain serve` that stands still at an armed stage of a move until the kill has happened.

Where the file `armed` in the folder `STAGED_HUB` names a stage, the hub writes `reached` with what it knows
then, and waits for the file `go`. Where it is the hub itself that is killed, it waits for that.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("STAGED_HUB", "."))
LONGEST_S = 20.0


def reach(job: Any, stage: str) -> None:
    """Tell that the job has come to this stage, and stand still until the kill, where it is armed."""
    armed = FOLDER / "armed"
    try:
        if armed.read_text() != stage:
            return
        armed.unlink()
    except FileNotFoundError:
        return
    written = FOLDER / "reached.new"
    written.write_text(json.dumps(_known(job)))
    written.rename(FOLDER / "reached")
    deadline_s = time.monotonic() + LONGEST_S
    while not (FOLDER / "go").exists() and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _known(job: Any) -> dict[str, Any]:
    """The step that could be restored if a node were lost now, by its name, and "" for none."""
    from pulsetrain.recovery.saves import restorable_without

    nodes = ["", *job.members.nodes]
    return {
        "attempt": job.attempt.number,
        "phase": str(job.phase),
        "restorable": {name: restorable_without(job, name) for name in nodes},
    }


def main() -> None:
    """The command line, with stages at which it stands still."""
    from pulsetrain import cli
    from pulsetrain.recovery import hold, images, launch, moving
    from pulsetrain.recovery.state import JobState
    from pulsetrain.recovery.transitions import Phase

    begin, rest, ask = moving.begin, moving.rest, moving.ask_for_saves
    hold_begin, bring, dump, restore = hold.begin, hold._bring_to_stand, images._dump, images.restore
    enter, result, first_step = JobState.enter, launch._result, JobState.note_first_step
    stages = {Phase.CHECKING: "checking", Phase.STARTING: "starting"}

    def begins(job: Any, request: Any, loop: Any) -> None:
        begin(job, request, loop)
        if request.what != "resume":
            reach(job, "asked")

    def asks(job: Any) -> int:
        step = ask(job)
        reach(job, "saving")
        return step

    def holds(job: Any, on_end: Any) -> Any:
        held = hold_begin(job, on_end)
        reach(job, "holding")
        return held

    async def brings(job: Any, held: Any) -> None:
        await bring(job, held)
        if held.state == "stands":
            reach(job, "standing")

    async def dumps(job: Any, image: Any, held: Any, on_end: Any) -> None:
        if held.state == "stands":
            reach(job, "dumping")
        await dump(job, image, held, on_end)

    async def rests(job: Any) -> None:
        await rest(job)
        reach(job, "stopped")

    async def restores(job: Any) -> Any:
        if job.recovery is not None and job.recovery.image is not None:
            reach(job, "restoring")
        return await restore(job)

    def enters(self: Any, phase: Any) -> None:
        enter(self, phase)
        stops = phase is Phase.PREEMPTING or (phase is Phase.SUSPENDING and self.move is not None)
        reach(self, "stopping" if stops else stages.get(phase, str(phase)))

    def results(job: Any, *rest: Any) -> Any:
        reach(job, "launched")
        return result(job, *rest)

    def steps(self: Any) -> None:
        before = self.attempt.first_step_done
        first_step(self)
        if self.attempt.first_step_done and not before:
            reach(self, "first_step")

    moving.begin, moving.rest, moving.ask_for_saves = begins, rests, asks
    hold.begin, hold._bring_to_stand = holds, brings
    images._dump, images.restore, launch._result = dumps, restores, results
    JobState.enter, JobState.note_first_step = enters, steps  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
