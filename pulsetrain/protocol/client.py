"""The hub's JSON API as Python calls, for the command line, the dashboard and scripts."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pulsetrain.core.caller import caller
from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.core.json import JsonObject
from pulsetrain.core.process_identity import is_process, ran_here

if TYPE_CHECKING:
    from pulsetrain.protocol.http import Reply

PROFILE_PATIENCE_S = 660.0  # for `HubClient.profile`: the hub gives up after 600


@dataclass(frozen=True, kw_only=True)
class HubAddress:
    """Where a hub listens and the token it asks for. `others` may lead in its place and ask for the same.

    `ca` is the file of the CA by which a certificate is checked, "" for those that the system knows.
    """

    url: str
    token: str
    others: tuple[str, ...] = ()
    ca: str = ""

    @property
    def urls(self) -> tuple[str, ...]:
        """All hubs of which one leads."""
        return (self.url, *self.others)


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`PULSETRAIN_DATA`, or ~/.local/share/pulsetrain.

    Raises `UsageError` where this user has no home folder, as in some containers.
    """
    try:
        return Path(environ.get("PULSETRAIN_DATA", "~/.local/share/pulsetrain")).expanduser()
    except RuntimeError as error:
        raise UsageError("this user has no home folder: give --data DIR, or set PULSETRAIN_DATA") from error


def find_hub(
    url: str | None = None,
    token: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    data: Path | None = None,
) -> HubAddress:
    """The hub that arguments name, else the environment, else the hub of the data folder.

    A running hub writes hub.json into its data folder, readable by its owner alone. `data` names that folder
    and goes before `PULSETRAIN_HUB`. Where no hub serves the folder itself, the one that a run there has
    started is taken. `url` may name several hubs, with commas between them. Raises `UsageError` where there
    is no hub, and where several runs have one.
    """
    path = (data or data_folder(environ)) / "hub.json"
    if not url and data is None:
        url = environ.get("PULSETRAIN_HUB")
    known = _known_hub(path, (url or "").strip().rstrip("/"))
    url = url or known.get("url")
    if not url:
        raise UsageError(
            f"no hub: give --hub URL, set PULSETRAIN_HUB, or start `pulsetrain serve` (no {path})"
        )
    first, *others = [part.strip().rstrip("/") for part in url.split(",") if part.strip()] or [""]
    from_file = known.get("token", "") if not others and first == known.get("url") else ""
    from_environment = environ.get("PULSETRAIN_TOKEN", "")
    kept = (from_environment or from_file) if data is None else (from_file or from_environment)
    known_ca = known.get("ca", "") if first == known.get("url") else ""
    ca = environ.get("PULSETRAIN_CA", "") or known_ca
    return HubAddress(url=first, token=_checked(token or kept), others=tuple(others), ca=ca)


def _checked(token: str) -> str:
    """A token without the end of line that a file or a secret may have. Raises `AuthError`."""
    token = token.strip()
    if not (token.isascii() and (token.isprintable() or not token)):
        raise AuthError("the token has characters that no token has: give it as it was made")
    return token


def leading(address: HubAddress, timeout_s: float = 2.0) -> HubAddress:
    """The one of several hubs that leads now, the first where none says so. One alone is not asked."""
    leader = leading_url(address.urls, address.ca, timeout_s) if address.others else ""
    return replace(address, url=leader or address.url, others=())


def leading_url(urls: Iterable[str], ca: str = "", timeout_s: float = 2.0) -> str:
    """The first of these hubs that says that it leads, "" for none."""
    from pulsetrain.protocol.http import HubHttp  # late: it takes most of a command's start

    for url in urls:
        with (
            contextlib.suppress(Unavailable, AuthError),
            contextlib.closing(HubHttp(url, "", timeout_s=timeout_s, ca=ca)) as http,
        ):
            if http.request("GET", "/v1/leader").status == 200:
                return url
    return ""


def _known_hub(path: Path, url: str) -> dict[str, str]:
    """What the hub at `url` wrote into its hub.json, or the hub to take where `url` is "". {}: none did.

    `path` is that of the data folder. One of a hub that has ended counts only where no run has a hub.
    """
    known, ended = _hub_file(path)
    if known.get("url", "") and (known["url"] == url if url else not ended):
        return known
    found = {file: _hub_file(file) for file in sorted(path.parent.glob("runs/*/hub.json"))}
    running = {file: hub for file, (hub, over) in found.items() if hub.get("url", "") and not over}
    if url:
        return next((hub for hub in running.values() if hub["url"] == url), known)
    if len(running) > 1:
        folders = ", ".join(shlex.quote(str(file.parent)) for file in running)
        raise UsageError(f"{len(running)} runs have a hub of their own: give --data with one of {folders}")
    return next(iter(running.values()), known)


def _hub_file(path: Path) -> tuple[dict[str, str], bool]:
    """The `url`, `token` and `ca` of hub.json, and whether its hub ran here and has ended. {}: no file."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}, False
    if not isinstance(known, dict):
        return {}, False
    texts = {name: text for name in ("url", "token", "ca") if isinstance(text := known.get(name), str)}
    pid, identity = known.get("pid"), known.get("process")
    if not (isinstance(pid, int) and isinstance(identity, str) and ran_here(identity)):
        return texts, False
    return texts, not is_process(pid, identity)


class HubClient:
    """One connection pool to one hub. Every call raises `Unavailable`, `AuthError` or `UsageError`."""

    def __init__(self, address: HubAddress, timeout_s: float = 10.0) -> None:
        from pulsetrain.protocol.http import HubHttp  # late: it takes most of a command's start

        self._http = HubHttp(address.url, address.token, timeout_s=timeout_s, ca=address.ca)

    def status(self) -> JsonObject:
        """{"hub": {...}, "jobs": [{job, state, attempt, step, verdict: {state, sentence, since_ns}}]}."""
        return self._call("GET", "/v1/status")

    def nodes(self) -> list[JsonObject]:
        """One object a node: node, job, state, node_rank, ranks, address, last_heartbeat_age_s, reason."""
        return list(self._call("GET", "/v1/nodes")["nodes"])

    def alerts(self) -> list[JsonObject]:
        """One object an alert: id, state, severity, kind, subject, summary, since, count, acknowledged_by."""
        return list(self._call("GET", "/v1/alerts")["alerts"])

    def acknowledge(self, alert: str, note: str = "") -> JsonObject:
        """Acknowledge an alert in the caller's name."""
        return self._call("POST", f"/v1/alerts/{alert}/ack", {"actor": caller(), "note": note})

    def silences(self) -> list[JsonObject]:
        """Silences in force: id, matchers, author, comment, created_ns, expires_ns, covers.

        `covers` is how many active alerts match now.
        """
        return list(self._call("GET", "/v1/silences")["silences"])

    def silence(self, matchers: Mapping[str, str], seconds: float, comment: str = "") -> JsonObject:
        """Mute the alerts whose fields equal `matchers` for so long, in the caller's name."""
        body = {
            "actor": caller(),
            "matchers": dict(matchers),
            "seconds": seconds,
            "comment": comment,
        }
        return self._call("POST", "/v1/silences", body)

    def end_silence(self, silence: str) -> JsonObject:
        """End a silence now."""
        return self._call("POST", f"/v1/silences/{silence}/end", {"actor": caller()})

    def incidents(self) -> list[JsonObject]:
        """One object an incident: id, job, root, victims, hypotheses, timeline, suggested_action."""
        return list(self._call("GET", "/v1/incidents")["incidents"])

    def stacks(self, job: str, *, fresh: bool = True) -> JsonObject:
        """Where the code of every rank stands: asked for now, or with `fresh` false the last picture or {}.

        {"job", "attempt", "ts_ns", "state", "sentence", "outliers", "group", "clusters", "blind", "tree"}.
        """
        path = f"/v1/jobs/{quote(job, safe='')}/stacks"
        return self._call("POST", path, {"actor": caller()}) if fresh else self._call("GET", path)

    def rank(self, job: str, rank: int) -> JsonObject:
        """What the last heartbeat of its node says of one rank: its groups, and what it has in flight.

        {"job", "attempt", "rank", "node", "heard_ns", "state", "last_step", "last_phase", "groups":
        [{"group", "size", "runs": [[first, distance, number]], "enqueued", "completed", "op", "op_seq",
        "op_bytes", "op_since_ns", "peer", "timeout_s"}]}
        """
        return self._call("GET", f"/v1/jobs/{quote(job, safe='')}/ranks/{rank}")

    def ras(self, job: str, *, fresh: bool = True) -> JsonObject:
        """What NCCL's RAS says of a job's ranks: asked for now, or with `fresh` false the last answer or {}.

        {"job", "attempt", "ts_ns", "why", "node", "state", "sentence", "verdict", "culprits", "confidence",
        "communicators": [{"communicator", "size", "ahead", "behind", "silent", "counts", "sentence"}]}.
        """
        path = f"/v1/jobs/{quote(job, safe='')}/ras"
        return self._call("POST", path, {"actor": caller()}) if fresh else self._call("GET", path)

    def profile(self, job: str, ranks: list[int], steps: int) -> JsonObject:
        """Profile the next `steps` steps of some ranks. Returns once they are over.

        {"job", "attempt", "first_step", "steps", "profiles": {rank: trace}, "failed": {rank: why}}
        """
        body = {"ranks": ranks, "steps": steps, "actor": caller()}
        return self._call("POST", f"/v1/jobs/{quote(job, safe='')}/profile", body)

    def measure_links(self, job: str, *, limit_mbit: float = 0.0) -> JsonObject:
        """Let the nodes of a job send to each other in rounds. Returns once they are over.

        {"job", "attempt", "phase", "state", "named": [{"kind", "name", "node", "reason", "broken"}],
        "reason", "rounds", "transfers", "nodes", "silent": {node: why}, "seconds"}
        """
        body = {"limit_mbit": limit_mbit, "actor": caller()}
        return self._call("POST", f"/v1/jobs/{quote(job, safe='')}/links", body)

    def check_nodes(self, nodes: Sequence[str], *, level: str = "light", job: str = "") -> JsonObject:
        """Check standbys of one job. Returns once that is over.

        {"job", "level", "finds", "nodes": [{"node", "result", "reason"}], "inconclusive", "seconds"}
        """
        body: JsonObject = {"nodes": list(nodes), "level": level, "actor": caller()}
        if job:
            body["job"] = job
        return self._call("POST", "/v1/checks", body)

    def evict(
        self,
        node: str,
        reason: str,
        *,
        dry_run: bool = False,
        actor: str | None = None,
        drain: bool = False,
        job: str = "",
        seen: Mapping[str, object] | None = None,
    ) -> JsonObject:
        """Evict a node, or with `dry_run` say what that would cost. `drain`: the scheduler drains it too.

        `job`: the job that the node belongs to, needed where several jobs have a node of this name.
        `seen`: `attempt` and `state` as a dry run told them. Where they differ by now, nothing is done.

        {"node", "job", "ranks", "standby", "resume_step", "lost_steps", "expected_s", "allowed", "why_not",
        "scheduler"}
        """
        body: JsonObject = {
            "node": node,
            "reason": reason,
            "dry_run": dry_run,
            "actor": actor or caller(),
        }
        if drain:
            body["drain"] = True
        if job:
            body["job"] = job
        if seen:
            body["seen"] = dict(seen)
        return self._call("POST", "/v1/evict", body)

    def move(
        self,
        job: str,
        what: str,
        reason: str,
        *,
        node: str = "",
        wait_s: float | None = None,
        lose_progress: bool = False,
        dry_run: bool = False,
        actor: str = "",
        devices: int = 0,
        nodes: Sequence[str] = (),
        seen: Mapping[str, object] | None = None,
    ) -> JsonObject:
        """Say "preempt", "resume" (on `nodes`), "migrate" (off `node`) or "resize" (to `devices`) to a job.

        `actor`: the caller by default. `seen`: the `attempt` that a dry run told. Where it differs by now,
        nothing is done.

        {"job", "what", "node", "on_nodes", "state", "step", "resume_step", "lost_steps",
        "process_dump", "standby", "dry_run", "can_do", "why_not", "waits_for"}
        """
        body: JsonObject = {"what": what, "reason": reason, "node": node, "dry_run": dry_run}
        body |= {"lose_progress": lose_progress, "actor": actor or caller()}
        if wait_s is not None:
            body["wait_s"] = wait_s
        if devices:
            body["devices"] = devices
        if nodes:
            body["nodes"] = list(nodes)
        if seen:
            body["seen"] = dict(seen)
        return self._call("POST", f"/v1/jobs/{quote(job, safe='')}/moves", body)

    def update(
        self,
        job: str,
        what: str,
        reason: str,
        *,
        argv: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        within_s: float | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        """Say "apply", "revert" or "cancel" to an update of what a job runs, in the caller's name.

        {"job", "what", "state", "number", "argv", "environment", "until_ns", "now", "step", "price",
        "dry_run", "can_do", "why_not"}
        """
        body: JsonObject = {"what": what, "reason": reason, "actor": caller(), "dry_run": dry_run}
        body |= {"argv": list(argv), "environment": dict(environment or {})}
        if within_s is not None:
            body["within_s"] = within_s
        return self._call("POST", f"/v1/jobs/{quote(job, safe='')}/updates", body)

    def pending_hang(self, job: str) -> JsonObject:
        """{"job", "pending_hang": {rank, since_ns, act_at_ns, action, why, condition, place} or None}."""
        return self._call("GET", _pending_hang(job))

    def decide_hang(
        self,
        job: str,
        decision: str,
        reason: str,
        *,
        seconds: float = 0.0,
        dry_run: bool = False,
        actor: str = "",
        seen: Mapping[str, object] | None = None,
    ) -> JsonObject:
        """Say "wait" (for `seconds`) or "now" to the hang of a job. `actor`: the caller by default.

        `seen`: the `rank` and `since_ns` of the hang. Where they differ by now, nothing is done.

        {"job", "decision", "dry_run", "can_do", "pending_hang"}
        """
        body: JsonObject = {"decision": decision, "reason": reason, "seconds": seconds, "dry_run": dry_run}
        if seen:
            body["seen"] = dict(seen)
        return self._call("POST", _pending_hang(job), {**body, "actor": actor or caller()})

    def _call(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        data = None if body is None else json.dumps(body).encode()
        reply = self._http.request(method, path, data, {"Content-Type": "application/json"})
        if reply.status == 401:
            why = _refusal(reply)
            raise AuthError(
                f"hub {self._http.url} refuses the token ({why}): set PULSETRAIN_TOKEN or --token"
            )
        if reply.status == 403:
            raise AuthError(f"hub {self._http.url}: {_refusal(reply)}")
        if reply.status >= 500:
            raise PulsetrainError(f"hub {self._http.url} failed: {reply.text[:200]}")
        if reply.status >= 300:
            raise UsageError(_refusal(reply))
        try:
            return dict(json.loads(reply.body))
        except (ValueError, TypeError) as error:
            raise PulsetrainError(f"{self._http.url} answers, but not as a hub does") from error


def _pending_hang(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}/pending_hang"


def _refusal(reply: Reply) -> str:
    """Why the hub did not do what it was asked for."""
    try:
        return str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200] or f"the hub answers {reply.status}"
