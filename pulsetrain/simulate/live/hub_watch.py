"""What the hub says while it is fed: its verdict, how soon it answers, how much, and its processor time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable
from pulsetrain.core.json import JsonObject
from pulsetrain.protocol.client import HubAddress
from pulsetrain.protocol.http import HubHttp

TIMEOUT_S = 60.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class HubAnswer:
    """One answer to a question for the status. `error` says why there is none, "" where there is one.

    `cpu_ratio` is the hub's processor time since the answer before, -1 where it runs elsewhere.
    """

    took_s: float
    bytes: int = 0
    state: str = ""
    sentence: str = ""
    attempt: int = -1
    step: int = -1
    cpu_ratio: float = -1.0
    error: str = ""


class CpuTimes:
    """Processor time of one process, as a share of one core since the last reading."""

    def __init__(self, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._process, self._clock = psutil.Process(pid), clock
        self._at_s, self._used_s = clock(), self._used()

    def ratio(self) -> float:
        """-1 where the process is gone."""
        before_at_s, before_used_s = self._at_s, self._used_s
        try:
            self._at_s, self._used_s = self._clock(), self._used()
        except psutil.Error:
            return -1.0
        return (self._used_s - before_used_s) / max(1e-9, self._at_s - before_at_s)

    def _used(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


class HubWatch:
    """Asks one hub for its status. Its calls block."""

    def __init__(self, hub: HubAddress, job: str) -> None:
        self._http, self._job = HubHttp(hub.url, hub.token, timeout_s=TIMEOUT_S, ca=hub.ca), job
        self._local = urlsplit(hub.url).hostname in LOOPBACK
        self._cpu: CpuTimes | None = None

    def ask(self) -> HubAnswer:
        """What the hub says now. Raises `AuthError` where it refuses the token."""
        began_s = time.monotonic()
        try:
            reply = self._http.request("GET", "/v1/status")
        except PulsetrainError as error:
            return HubAnswer(took_s=time.monotonic() - began_s, error=str(error))
        took_s = time.monotonic() - began_s
        if reply.status == 401:
            raise AuthError(f"hub {self._http.url} refuses the token: set PULSETRAIN_TOKEN or --token")
        if reply.status != 200:
            return HubAnswer(took_s=took_s, error=f"status {reply.status}")
        status = json.loads(reply.body)
        job = next((j for j in status["jobs"] if j["job"] == self._job), None)
        cpu_ratio = self._cpu_ratio(status["hub"])
        if job is None:
            return HubAnswer(took_s=took_s, bytes=len(reply.body), cpu_ratio=cpu_ratio)
        return HubAnswer(
            took_s=took_s,
            bytes=len(reply.body),
            state=job["verdict"]["state"],
            sentence=job["verdict"]["sentence"],
            attempt=job["attempt"],
            step=job["step"],
            cpu_ratio=cpu_ratio,
        )

    def close(self) -> None:
        """Let the connection go."""
        self._http.close()

    def _cpu_ratio(self, hub: JsonObject) -> float:
        if not self._local:
            return -1.0
        try:
            self._cpu = self._cpu or CpuTimes(int(hub["pid"]))
        except psutil.Error:
            return -1.0
        return self._cpu.ratio()


def reachable(hub: HubAddress) -> None:
    """Raise `Unavailable` where no hub answers at the address, before thousands of agents try."""
    http = HubHttp(hub.url, hub.token, timeout_s=TIMEOUT_S, connect_s=3.0, ca=hub.ca)
    try:
        reply = http.request("GET", "/ping")
    finally:
        http.close()
    if reply.status != 200:
        raise Unavailable(f"hub {hub.url} answers with status {reply.status}")
