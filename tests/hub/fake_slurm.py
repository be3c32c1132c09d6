"""Slurm's commands without Slurm: one node, as scontrol tells of it."""

from pulsetrain.core.errors import Unavailable
from pulsetrain.hub.slurm_scheduler import CommandFailed
from pulsetrain.recovery.scheduler import Unanswered


class FakeSlurm:
    """Keeps every command with its environment. With `error` each one fails.

    With `nodes`, a job that leaves out another node is refused. With `slow`, jobs are submitted, and sbatch
    does not say so.
    """

    def __init__(self, state="IDLE", reason="", error="", nodes=(), slow=False):
        self.state, self.reason, self.error, self.nodes, self.slow = state, reason, error, nodes, slow
        self.comments = []
        self.commands, self.environs = [], []

    def __call__(self, words, environ, timeout_s):
        self.commands.append(list(words))
        self.environs.append(dict(environ))
        if self.error:
            raise Unavailable(self.error)
        if words[-1] == "node":
            return "".join(f"NodeName={node} Arch=x86_64 State=IDLE\n" for node in self.nodes)
        if words[-1] == "job":
            jobs = (f"JobId={4711 + i} JobName=x Comment={c} \n" for i, c in enumerate(self.comments))
            return "JobId=4 JobName=y UserId=ada(1) \n" + "".join(jobs)
        if "show" in words:
            told = f" Reason={self.reason} [root@2026-01-01T00:00:00]" if self.reason else ""
            return f"NodeName={words[-1]} Arch=x86_64 OS=Linux 6.1 State={self.state} Weight=1{told}\n"
        for word in words:
            if word.startswith("State="):
                self.state = {"DRAIN": "IDLE+DRAIN", "RESUME": "IDLE"}[word.removeprefix("State=")]
            if word.startswith("Reason="):
                self.reason = word.removeprefix("Reason=")
        for word in words:
            unknown = set(word.removeprefix("--exclude=").split(",")) - set(self.nodes)
            if self.nodes and word.startswith("--exclude=") and unknown:
                raise CommandFailed("sbatch ended with status 1: Invalid node name specified")
        if "--parsable" not in words:
            return ""
        self.comments += [word.removeprefix("--comment=") for word in words if word.startswith("--comment=")]
        if self.slow:
            raise Unanswered("sbatch: no answer in 20 s")
        return f"{4710 + len(self.comments)};cluster\n"
