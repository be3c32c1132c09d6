"""An agent that is the first process of a container lives beneath a small one that does the duties of that.

The kernel gives the first process every orphan, such as the workers of a data loader whose rank was killed.
One that does not wait for them keeps them as zombies, until the container has as many processes as it may.
"""

from __future__ import annotations

import os
import signal

FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
SI_KERNEL = 0x80
"""Where a signal of a terminal comes from. It goes to all processes there, so the child has it already."""


def live_beneath_init(pid: int) -> None:
    """Return in a child where this process, `pid`, is the first one. Else return at once.

    The first process passes signals on, waits for what ends, and ends with the child's status. No thread may
    have been started.
    """
    if pid != 1:
        return
    waited_for = {signal.SIGCHLD, *FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = None
    while status is None:
        came = signal.sigwaitinfo(waited_for)
        if came.si_signo == signal.SIGCHLD:
            status = _reap(child)
        elif came.si_code != SI_KERNEL:
            os.kill(child, came.si_signo)
    os._exit(status)


def _reap(child: int) -> int | None:
    """Wait for all that has ended. Returns the exit status where `child` is among it, as a shell says it."""
    status = None
    while True:
        try:
            ended, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if ended == 0:
            return status
        if ended == child:
            code = os.waitstatus_to_exitcode(raw)
            status = code if code >= 0 else 128 - code
