"""A real Slurm of five nodes on this machine: munged, slurmctld, and a slurmd for each node."""

import contextlib
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.agent.real_processes import parent, until
from tests.agent.real_processes import with_environment as started_with
from tests.kv.cluster import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or any(which(program) is None for program in PROGRAMS),
    reason="no Slurm here, or not root: run deploy/test-services",
)
NODES = 5
DOWN_S = 30  # after which Slurm calls a node down

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmdTimeout={down_s}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def with_environment(key, value):
    """The same as a set."""
    return set(started_with(key, value))


class Slurm:
    """The cluster. `run` runs one of Slurm's commands, `conf` is its configuration file."""

    def __init__(self, folder: Path):
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.processes = []
        ports = free_ports(NODES + 1)
        names = [f"n{i + 1}" for i in range(NODES)]
        host = socket.gethostname().split(".")[0]
        lines = "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=2 State=UNKNOWN"
            for name, port in zip(names, ports[1:], strict=True)
        )
        self.conf.write_text(
            CONF.format(folder=folder, host=host, controller=ports[0], nodes=lines, down_s=DOWN_S)
        )
        (folder / "state").mkdir()
        for name in names:
            (folder / f"spool-{name}").mkdir()
        self.env = os.environ | {"SLURM_CONF": str(self.conf)}
        self._munge()
        self._start("slurmctld", "-D", "-i", "-f", str(self.conf))
        self.daemons = {name: self._start("slurmd", "-D", "-N", name, "-f", str(self.conf)) for name in names}

    def __enter__(self):
        try:
            assert until(lambda: self.idle() == NODES, 60), self._logs()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *words, **more):
        """What the command prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, **more)
        assert done.returncode == 0, (words, done.stderr, self._logs())
        return done.stdout

    def state(self, job):
        """The job's state, as RUNNING. "" where it is forgotten."""
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%T", "-t", "all"],
            env=self.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout.strip()

    def node(self, name):
        """State and reason of a node, as ("MIXED+DRAIN", "fan failed")."""
        said = self.run("scontrol", "--oneliner", "show", "node", name)
        reason = re.search(r"Reason=(.*?)(?: \[\S+\])?\s*$", said)
        return re.search(r"State=(\S+)", said)[1], reason[1] if reason else ""

    def lose(self, name):
        """The machine is gone: its slurmd, what watches its steps, and what runs in them."""
        tasks = with_environment("SLURM_CONF", str(self.conf)) & with_environment("SLURMD_NODENAME", name)
        watchers = {parent(pid) for pid in tasks} - tasks - {os.getpid(), 1}
        stepds = {pid for pid in watchers if Path(f"/proc/{pid}/comm").read_text().startswith("slurmstepd")}
        self.daemons[name].kill()
        for pid in stepds | tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._start(
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munge.pid"),
            *(f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed"),
        )
        assert until(lambda: (self.folder / "munge.socket").exists(), 20)

    def _start(self, *command):
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=out, stderr=out))
        return self.processes[-1]

    def idle(self):
        """How many nodes have no job, nor one that is being ended."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"], env=self.env, capture_output=True, text=True, check=False
        )
        return sum(line.endswith(" idle") for line in done.stdout.splitlines())

    def _logs(self):
        return {p.name: p.read_text(errors="replace")[-1500:] for p in self.folder.glob("*.*o[gu][gt]")}
