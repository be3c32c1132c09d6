"""Starting and stopping a hub: folder, token, ports, the web server, the dashboard child."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
import uvloop

from pulsetrain.core.clock import SystemClock
from pulsetrain.core.errors import PulsetrainError, Unavailable, UsageError
from pulsetrain.core.open_files import allow_many_open_files
from pulsetrain.core.private_file import make_private_folder, replace_private
from pulsetrain.core.process_identity import process_identity
from pulsetrain.core.process_title import set_process_title
from pulsetrain.core.supervisor import TaskSupervisor
from pulsetrain.dashboard import launch
from pulsetrain.hub.app import Parts, build
from pulsetrain.hub.assembly import assemble
from pulsetrain.hub.certificate import STALE_S, CertificateFiles, ServerCertificate
from pulsetrain.hub.config import HubConfig
from pulsetrain.hub.garbage import collect_seldom
from pulsetrain.hub.job_memory import KeptMemory
from pulsetrain.hub.kept_store import open_kept
from pulsetrain.hub.leadership import Candidate, Role
from pulsetrain.hub.loops import Statuses
from pulsetrain.hub.settings import Settings
from pulsetrain.kv.election import Election
from pulsetrain.kv.store import KeyValueStore
from pulsetrain.stream.store.clickhouse import Store, open_store

log = structlog.get_logger()

STORE_PATIENCE_S = 600.0
"""For so long a hub that starts waits for a store that does not answer. The tries themselves come on top."""
STORE_AGAIN_S, STORE_LONGEST_AGAIN_S = 1.0, 15.0
"""The first and the longest pause between two tries."""


ENDING = (signal.SIGINT, signal.SIGTERM)


def serve(
    data: Path,
    settings: Settings,
    say: Callable[[str], None],
    ends_on: Collection[signal.Signals] = ENDING,
) -> None:
    """Run a hub on folder `data` until a signal of `ends_on`. Others of `ENDING` do nothing to it.

    `say` prints one line for people. Raises `UsageError` for a port in use, a folder that is not writable, or
    one that another hub owns.
    """
    # uvicorn raises a signal it caught once more after its own end: SIGTERM must unwind as Ctrl-C does
    ends = signal.SIGTERM in ends_on
    signal.signal(signal.SIGTERM, signal.default_int_handler if ends else _nothing)
    config = settings.hub
    set_process_title("hub")
    allow_many_open_files()
    make_folder(data)
    certificate = shown_certificate(config)
    listener = bind(config.host, config.port)
    store_url = config.store or f"chdb://{data / 'store'}"
    try:
        store = open_tables(store_url, settings)
    except Unavailable as error:
        if store_url.startswith("chdb"):
            raise
        listener.close()  # whoever connects is told at once that nobody answers
        store = wait_for_store(lambda: open_tables(store_url, settings), error, say)
        listener = bind(config.host, config.port)
    url = own_url(config.host, listener.getsockname()[1], tls=certificate is not None)
    token = config.token.strip() or kept_token(data)
    with contextlib.ExitStack() as stack:
        stack.callback(store.close)
        kept = open_kept(config.kv, data, os.environ)
        stack.callback(kept.close)
        parts = stack.enter_context(candidate(kept, store, data, url, token, settings))
        stack.callback(parts.alerts.close)
        stack.callback(parts.writer.close)
        store.before_close(parts.intake.close)
        parts.writer.start()
        parts.intake.start()
        facts = parts.facts
        if config.dashboard:
            facts["dashboard"] = stack.enter_context(
                dashboard(url, token, config.dashboard_port, certificate, config.dashboard_hosts)
            )
        if config.kafka:
            parts.table.add(stack.enter_context(kafka_ingest(config.kafka, store)))
        if certificate is not None and certificate.files.ca:
            facts["ca"] = certificate.files.ca
        stack.callback((data / "hub.json").unlink, missing_ok=True)
        write_address(data, facts | {"token": token})
        say(f"hub        {url}")
        if config.dashboard:
            say(f"dashboard  {facts['dashboard']}")
        say(f"data       {data}")
        collect_seldom()
        run_server(parts, listener, certificate, ends_on)


def _nothing(_signum: int, _frame: FrameType | None) -> None:
    """Handle a signal that means nothing. One that is ignored would be so in children too."""


def open_tables(url: str, settings: Settings) -> Store:
    """The store with all its tables. Raises `UsageError`, and `Unavailable` where it does not answer."""
    store = open_store(url, engine=settings.store)
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def wait_for_store(
    opens: Callable[[], Store],
    error: Unavailable,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Store:
    """Open a store that did not answer, once it does. What waiting cannot change is raised at once.

    Raises `Unavailable` after `STORE_PATIENCE_S`.
    """
    say(f"waiting    {error}")
    waited_s, pause_s = 0.0, STORE_AGAIN_S
    while True:
        sleep(pause_s)
        waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, STORE_LONGEST_AGAIN_S)
        try:
            return opens()
        except Unavailable as again:
            log.warning("store_away", error=str(again), waited_s=waited_s)
            if waited_s >= STORE_PATIENCE_S:
                raise


@contextlib.contextmanager
def candidate(
    kept: KeyValueStore, store: Store, data: Path, url: str, token: str, settings: Settings
) -> Iterator[Parts]:
    """The parts of a hub that is alone, or with ``--kv`` of one that begins to wait for the lead."""
    if not settings.hub.kv:
        memory = KeptMemory(kept)
        memory.load()
        yield assemble(store, memory, data, url, token, settings)
        return
    clock = SystemClock()
    election = Election(kept, f"{url}#{secrets.token_hex(4)}", clock)
    memory = KeptMemory(kept, fence=lambda: hub.fence(), refused=lambda: hub.depose(), patience_s=None)
    hub = Candidate(election, memory.load, clock)
    parts = assemble(store, memory, data, url, token, settings, leadership=hub)
    parts.table.add(lambda: [hub.status()])
    hub.start()
    try:
        yield parts
    finally:
        with contextlib.suppress(PulsetrainError):  # its lease ends by itself
            hub.stop()


class Server(uvicorn.Server):
    """A server that only the signals of `ends_on` end."""

    def __init__(self, config: uvicorn.Config, ends_on: Collection[int] = ENDING) -> None:
        super().__init__(config)
        self._ends_on = ends_on

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if sig in self._ends_on:
            super().handle_exit(sig, frame)


def run_server(
    parts: Parts,
    listener: socket.socket,
    certificate: ServerCertificate | None = None,
    ends_on: Collection[int] = ENDING,
) -> None:
    """Serve until a signal of `ends_on`. Connections that agents hold open do not delay the end.

    Raises `Unavailable` once another hub leads in place of this one.
    """

    def end() -> None:
        server.should_exit = True

    server = Server(
        uvicorn.Config(
            build(parts, end),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
            ws_max_size=1 << 24,
            ws_ping_interval=60.0,  # heartbeats tell sooner that an agent is gone
            ws_ping_timeout=60.0,
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        ),
        ends_on,
    )
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(server, listener, parts, certificate))
    if parts.leadership.role is Role.DEPOSED:
        raise Unavailable("this hub does not lead any more: start it again, and it waits for its turn")


async def _serve(
    server: uvicorn.Server, listener: socket.socket, parts: Parts, certificate: ServerCertificate | None
) -> None:
    """Serve, and follow the files of the certificate, also while another hub leads."""
    loops = TaskSupervisor()
    if certificate is not None:
        loops.add("certificate", certificate.turn, stale_after_s=STALE_S)
        parts.table.add(loops.statuses)
    loops.start()
    try:
        await server.serve(sockets=[listener])
    finally:
        await loops.stop()


def shown_certificate(config: HubConfig) -> ServerCertificate | None:
    """The certificate of the configuration, None without one. Raises `UsageError`."""
    files = CertificateFiles.of(config.tls_certificate, config.tls_key, config.ca_certificate)
    return None if files is None else ServerCertificate(files)


def own_url(host: str, port: int, *, tls: bool) -> str:
    """Where this hub is reached on its own machine. A certificate names no wildcard address.

    >>> own_url("0.0.0.0", 8780, tls=True)
    'https://127.0.0.1:8780'
    >>> own_url("0.0.0.0", 8780, tls=False)
    'http://0.0.0.0:8780'
    >>> own_url("::", 8780, tls=False)
    'http://[::1]:8780'
    """
    if tls or host == "::":
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def make_folder(data: Path) -> None:
    """Create the data folder, readable by its owner alone. Raises `UsageError`."""
    try:
        make_private_folder(data)
        probe = data / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"data folder {data}: {error.strerror}; give --data a folder you can write"
        ) from error


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A listening socket. Raises `UsageError` where the port is taken or the address is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        instead = "--host an address of this machine" if of_host else f"{flag} another port, or 0"
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}; give {instead}") from error
    return listener


def kept_token(data: Path) -> str:
    """The token of this data folder, made on first use and readable by its owner alone."""
    path = data / "token"
    token = path.read_text().strip() if path.exists() else ""
    if not token:  # or one that was not written to its end
        token = secrets.token_urlsafe(24)
        replace_private(path, token)
    return token


def write_address(data: Path, facts: dict[str, object]) -> None:
    """hub.json for clients on this machine, readable by its owner alone, never half written."""
    told = {**facts, "process": process_identity(os.getpid())}
    replace_private(data / "hub.json", json.dumps(told))


@contextlib.contextmanager
def kafka_ingest(servers: str, store: Store) -> Iterator[Statuses]:
    """A member of the ingest group on a thread of this hub, and its loop's status.

    Brokers that are away are waited for, also at the start. Raises `UsageError` of Kafka.
    """
    from pulsetrain.hub.ingest import kafka_config
    from pulsetrain.stream.kafka.group_member import GroupMember

    member = GroupMember(kafka_config(None, {"servers": servers}), store, SystemClock(), waits=True)
    member.start()
    try:
        yield lambda: [member.status()]
    finally:
        member.stop()


@contextlib.contextmanager
def dashboard(
    url: str, token: str, port: int, certificate: ServerCertificate | None = None, hosts: str = ""
) -> Iterator[str]:
    """The dashboard as a child that ends with the hub. Yields its address."""
    if port == 0:
        with bind("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
    else:
        bind("127.0.0.1", port, "--dashboard-port").close()
    files = certificate.files if certificate is not None else None
    command = launch.command(port, tls=(str(files.certificate), str(files.key)) if files else None)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "pulsetrain.hub.dashboard_process", str(os.getpid()), *command],
        env=os.environ | launch.environment(url, token, files.ca if files else "", hosts),
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
        start_new_session=True,
    )
    try:
        yield f"{'https' if files else 'http'}://127.0.0.1:{port}"
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
