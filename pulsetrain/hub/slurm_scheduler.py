"""Slurm as the scheduler: drains nodes with scontrol, submits replacements with sbatch. No shell is used."""

from __future__ import annotations

import re
import shlex
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig, Unanswered

MARK = "pulsetrain: "
"""How the reason of a node that Pulsetrain has drained begins."""
REASON_CHARACTERS = 150
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
"""What Slurm's commands need of the environment. The rest describes the job that the hub may run in."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_NODE_NAME = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_STATE = re.compile(r"\bState=(\S+)")
_REASON = re.compile(r"\bReason=(.*?)(?: \[\S+@\S+\])?\s*$")

_NO_ANSWER = re.compile(r"timed out|Zero Bytes were transmitted", re.IGNORECASE)
"""In what Slurm's commands say of a controller that was too slow (slurm_errno.c)."""
_SITE_COMMENT = re.compile(r"^#SBATCH\s+(?:\S+\s+)*--comment", re.MULTILINE)
_JOB = r"^JobId=(\d+) .*\bComment={comment}(?:\s|$)"

Run = Callable[[Sequence[str], Mapping[str, str], float], str]
"""Runs a command with this environment, for so many seconds at most. Returns what it printed."""


class CommandFailed(Unavailable):
    """A command of Slurm ended with a status: it was refused."""


def run(words: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """What the command printed. Raises `Unavailable` with one line where it failed.

    A command whose controller did not answer may have done its work. That is `Unanswered`.
    """
    try:
        done = subprocess.run(
            list(words),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"{words[0]}: no answer in {timeout_s:g} s") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        kind = Unanswered if _NO_ANSWER.search(lines[-1]) else CommandFailed
        raise kind(f"{words[0]} ended with status {done.returncode}: {lines[-1].strip()}")
    return done.stdout


class SlurmScheduler:
    """See `Scheduler`. `environ` is the hub's environment."""

    name = "Slurm"

    def __init__(self, config: SchedulerConfig, environ: Mapping[str, str], run: Run = run) -> None:
        self._config, self._run = config, run
        self._environ = {k: v for k, v in environ.items() if not k.startswith("SLURM") or k in KEPT}

    def drain(self, node: str, reason: str, *, job: str) -> str:
        """See `Scheduler.drain`. Slurm lets all jobs on a drained node go on."""
        name = checked_name(node)
        state, why = self._node(name)
        if "DRAIN" in state:
            return f"{name} was drained already: {why}"
        text = MARK + _one_line(reason)
        self._scontrol("update", f"NodeName={name}", "State=DRAIN", f"Reason={text}")
        return f"{name} is drained: {text}"

    def give_back(self, node: str) -> str:
        """See `Scheduler.give_back`."""
        name = checked_name(node)
        state, why = self._node(name)
        if "DRAIN" not in state:
            return f"{name} was not drained"
        if not why.startswith(MARK):
            return f"{name} stays drained: {why}"
        self._scontrol("update", f"NodeName={name}", "State=RESUME")
        return f"{name} is not drained any more"

    def replace(self, request: NodeRequest) -> str:
        """See `Scheduler.replace`. A node to leave out that is none of Slurm's is not there to begin with."""
        if request.again:
            if self._has_comment():
                return "a job of Slurm that may have been submitted: its comment is the site's"
            known = self._submitted(request)
            if known:
                return f"Slurm's job {known}"
        exclude = [node for node in request.exclude if _is_name(node)]
        try:
            said = self._submit(request, exclude)
        except CommandFailed:  # sbatch refuses a job that leaves out a node it does not know
            usable = self._known(exclude)
            if usable == exclude:
                raise
            said = self._submit(request, usable)
        return f"Slurm's job {said.strip().partition(';')[0]}"

    def _submit(self, request: NodeRequest, exclude: Sequence[str]) -> str:
        more = {
            "PULSETRAIN_REPLACEMENT_JOB": request.job,
            "PULSETRAIN_REPLACEMENT_NNODES": request.flag,
        }
        words = [*shlex.split(self._config.sbatch), "--parsable", "--nodes=1"]
        words += [] if self._has_comment() else [f"--comment={_comment(request)}"]
        words += [f"--exclude={','.join(exclude)}"] if exclude else []
        return self._run([*words, self._config.template], {**self._environ, **more}, self._config.timeout_s)

    def _has_comment(self) -> bool:
        """Whether the site says the comment of its jobs. It may book them by that."""
        if any(word.startswith("--comment") for word in shlex.split(self._config.sbatch)):
            return True
        try:
            template = Path(self._config.template).read_text(errors="replace")
        except OSError:
            return False  # sbatch says what is wrong with it
        return _SITE_COMMENT.search(template) is not None

    def _submitted(self, request: NodeRequest) -> str:
        """The number of the job that was submitted for this request, "" for none."""
        try:
            jobs = self._scontrol("--oneliner", "show", "job")
        except Unavailable as error:
            raise Unanswered(f"it is not known whether a replacement was submitted: {error}") from error
        found = re.search(_JOB.format(comment=re.escape(_comment(request))), jobs, re.MULTILINE)
        return found[1] if found else ""

    def _known(self, nodes: Sequence[str]) -> list[str]:
        """Those of `nodes` that are Slurm's."""
        if not nodes:
            return []
        every = set(_NODE_NAME.findall(self._scontrol("--oneliner", "show", "node")))
        return [node for node in nodes if node in every]

    def _node(self, name: str) -> tuple[str, str]:
        """State and reason of a node, as in ("IDLE+DRAIN", "pulsetrain: gpu_lost")."""
        said = self._scontrol("--oneliner", "show", "node", name)
        state, reason = _STATE.search(said), _REASON.search(said)
        return state[1] if state else "", reason[1] if reason else ""

    def _scontrol(self, *words: str) -> str:
        command = [*shlex.split(self._config.scontrol), *words]
        return self._run(command, self._environ, self._config.timeout_s)


def checked_name(node: str) -> str:
    """The name of one node. Raises `UsageError` for what Slurm would read as a list, a range or all nodes.

    >>> checked_name("gpu-07")
    'gpu-07'
    """
    if not _is_name(node):
        raise UsageError(f"node {node!r}: no name of a Slurm node; allowed: letters, digits, ., _ and -")
    return node


def _comment(request: NodeRequest) -> str:
    """A word that no other replacement has. Slurm keeps it beside the job."""
    return f"pulsetrain-{zlib.crc32(request.job.encode()):08x}-{request.number}"


def _is_name(node: str) -> bool:
    return bool(_NAME.fullmatch(node)) and node.upper() != "ALL"


def _one_line(text: str) -> str:
    """`text` as a reason: one line of printable characters, without quotes, and not long."""
    printable = "".join(c if c.isprintable() and c not in "\"'" else " " for c in text)
    return " ".join(printable.split())[:REASON_CHARACTERS]
