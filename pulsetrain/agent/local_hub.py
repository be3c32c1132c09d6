"""The hub of a run: one that is known already, or `pulsetrain serve` as a child of the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast
from urllib.parse import urlsplit

from pulsetrain.agent.hub_keeper import HubKeeper
from pulsetrain.agent.launch_options import HubOptions
from pulsetrain.core.errors import PulsetrainError, UsageError
from pulsetrain.core.private_file import make_private_folder, replace_private
from pulsetrain.core.process_identity import is_process, process_identity
from pulsetrain.protocol.client import HubAddress, data_folder, find_hub

START_TIMEOUT_S = 180.0  # its imports may come over a slow network file system
STOP_TIMEOUT_S = 8.0
POLL_S = 0.5

END = signal.SIGINT
"""What ends the hub of a run. A scheduler's SIGTERM goes to all processes, and this one must outlive it: it
stores how the run ended."""

# The hub ends with the thread that started it. Signals that are for ranks do nothing to it. SIGINT may have
# been ignored, as in a script's background.
BOOT = (
    "import signal, sys; signal.signal(signal.SIGUSR1, signal.SIG_IGN); "
    "signal.signal(signal.SIGUSR2, signal.SIG_IGN); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from pulsetrain.agent.processes.zygote_protocol import die_with; "
    "die_with(int(sys.argv.pop(1)), signal.SIGINT); from pulsetrain.cli import main; main()"
)


class HubFacts(TypedDict):
    """What a running hub writes into hub.json. `dashboard` and `ca` are "" where it has none. `process` is
    the hub's `process_identity`."""

    url: str
    token: str
    pid: int
    process: str
    dashboard: str
    ca: str


@dataclass(frozen=True, kw_only=True)
class LocalHub:
    """A hub that this process runs. `dashboard` is "" where it has none.

    `keep`, called on the main thread, starts the hub again where it has ended. It returns False where that
    was tried in vain.
    """

    address: HubAddress
    dashboard: str
    keep: Callable[[], bool] = lambda: True


@dataclass(frozen=True, kw_only=True)
class KnownHub:
    """A hub to join. `folder` is the one it serves, None where it was named in another way."""

    address: HubAddress
    folder: Path | None = None


@contextlib.contextmanager
def join_hub(
    options: HubOptions, data: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[HubAddress | None]:
    """The hub to join, as `known_hub`; None where there is none.

    While the block lasts, a run that owns the hub keeps it: see `wait_for_guests`.
    """
    with contextlib.ExitStack() as stack:
        hub = known_hub(options, data, environ)
        if hub is not None and hub.folder is not None:
            stack.enter_context(_guest(hub.folder))
            hub = known_hub(options, data, environ)  # it may have ended just before
        yield hub.address if hub else None


def known_hub(
    options: HubOptions, data: Path | None = None, environ: Mapping[str, str] = os.environ
) -> KnownHub | None:
    """The hub to join; None where there is none.

    In this order: the one that `options` name, the one that serves the folder `data` where that is given, the
    one in the environment, the one that serves the data folder of the environment.
    """
    named = options.url or environ.get("PULSETRAIN_HUB")
    if data is not None and not options.url and _alive(data / "hub.json"):
        folder = data
    elif named:
        beside = {**environ, "PULSETRAIN_DATA": str(data or data_folder(environ))}
        return KnownHub(address=find_hub(named, options.token, beside))
    elif (usual := _usual_folder(environ, data)) is not None and _alive(usual / "hub.json"):
        folder = usual
    else:
        return None
    address = find_hub(None, options.token, {"PULSETRAIN_DATA": str(folder)})
    return KnownHub(address=address, folder=folder)


def _usual_folder(environ: Mapping[str, str], data: Path | None) -> Path | None:
    """The data folder of the environment. None where there is none, and another one is given."""
    try:
        return data_folder(environ)
    except UsageError:
        if data is None:
            raise
    return None


@contextlib.contextmanager
def local_hub(
    folder: Path, *, dashboard: bool = True, timeout_s: float = START_TIMEOUT_S
) -> Iterator[LocalHub]:
    """Run a hub on `folder` and free ports while the block lasts.

    Call it from the main thread: the hub gets `END` when that thread ends. Raises `PulsetrainError` with
    the hub's own last line where it does not start.
    """
    ports = ["--port", "0", *(["--dashboard-port", "0"] if dashboard else ["--no-dashboard"])]
    keeper = HubKeeper(_start(folder, ports), lambda: _start(folder, ports, log_mode="ab"))
    try:
        facts = _await_facts(keeper.process, folder, timeout_s)
        ports[:] = _same_ports(facts)
        address = HubAddress(url=facts["url"], token=facts["token"], ca=facts.get("ca", ""))
        yield LocalHub(address=address, dashboard=facts.get("dashboard", ""), keep=keeper.keep)
    finally:
        _stop(keeper.process)


def wait_for_guests(
    folder: Path,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    *,
    interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Return when no other run uses the hub that serves `folder`. From then on none finds it.

    Runs join a hub of another run where both have the same `--data`. They must not lose it. `interrupted`:
    whether a first Ctrl-C came. A person is told what it waits for then, and that a second one ends it all.
    """
    announced = told = False
    while True:
        guests = _guests(folder)
        if not guests:
            _remove(folder / "hub.json")
            guests = _guests(folder)
            if not guests:
                return
        if not announced or (interrupted() and not told):
            told = interrupted()
            pids = ", ".join(str(pid) for pid in sorted(guests))
            also = (
                "Ctrl-C again ends it now, and they go on without a hub" if told else "Ctrl-C twice ends it"
            )
            say(f"other runs use the hub of this run (pid {pids}): it stays until they end; {also}")
            announced = True
        sleep(POLL_S)


@contextlib.contextmanager
def _guest(folder: Path) -> Iterator[None]:
    """Show that this process uses the hub that serves `folder`.

    A crash leaves no mark without a word of whose it is: that would be a guest for as long as any process has
    its pid.
    """
    mark = folder / "guests" / str(os.getpid())
    try:
        mark.parent.mkdir(exist_ok=True)
        replace_private(mark, process_identity(os.getpid()), give=True)
    except OSError:  # a full disk: a mark that is empty is better than none, and the run goes on without one
        with contextlib.suppress(OSError):
            mark.touch()
    try:
        yield
    finally:
        _remove(mark)


def _remove(file: Path) -> None:
    """Remove a file where that is possible. On a disk that has become read-only the job's end is not lost."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


def _guests(folder: Path) -> list[int]:
    """Pids of the processes that use the hub and live."""
    marks = [mark for mark in (folder / "guests").glob("*") if mark.name.isdigit()]
    pids = [int(mark.name) for mark in marks if is_process(int(mark.name), _text(mark))]
    return [pid for pid in pids if pid != os.getpid()]


def _text(mark: Path) -> str:
    """What a guest wrote of itself, "" where it could not."""
    try:
        return mark.read_text()
    except OSError:
        return ""


def _start(
    folder: Path, ports: Sequence[str], log_mode: Literal["wb", "ab"] = "wb"
) -> subprocess.Popen[bytes]:
    make_private_folder(folder)
    words = ["serve", "--of-run", "--data", str(folder), *ports]
    with (folder / "hub.log").open(log_mode) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the agent, which ends the hub last
        )


def _same_ports(facts: HubFacts) -> list[str]:
    """Arguments with which the hub serves where it did."""
    ports = ["--port", str(urlsplit(facts["url"]).port)]
    if facts.get("dashboard"):
        return [*ports, "--dashboard-port", str(urlsplit(facts["dashboard"]).port)]
    return [*ports, "--no-dashboard"]


def _await_facts(process: subprocess.Popen[bytes], folder: Path, timeout_s: float) -> HubFacts:
    """What the hub `process` wrote. The file of a hub that was killed earlier does not count."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            lines = (folder / "hub.log").read_text(errors="replace").strip().splitlines() or [
                _why_silent(folder)
            ]
            raise PulsetrainError(f"the hub ended with status {process.returncode}: {lines[-1]}")
        with contextlib.suppress(OSError, ValueError):
            facts = cast("HubFacts", json.loads((folder / "hub.json").read_text()))
            if facts["pid"] == process.pid:
                return facts
        time.sleep(0.05)
    raise PulsetrainError(f"the hub did not start in {timeout_s:g} s; see {folder / 'hub.log'}")


def _why_silent(folder: Path) -> str:
    """Why a hub has written nothing: the disk may be full, so that nothing but empty files can be made."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return "no output"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(END)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _alive(facts: Path) -> bool:
    """Whether the process that wrote `facts` still runs; a hub that was killed leaves its file."""
    try:
        found = json.loads(facts.read_text())
        return is_process(int(found["pid"]), str(found.get("process", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
