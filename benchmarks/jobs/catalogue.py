"""The training scripts of this folder: how each is started, what it needs, and what it is used for.

Each one is written as somebody who never heard of Pulsetrain would write it. They run on CPUs over gloo. They
print ``step N loss X`` after each step and ``final loss X`` at the end, on the one rank that knows the loss.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).resolve().parent
LOAD = ("--width", "256")


@dataclass(frozen=True, slots=True)
class Job:
    """One script.

    `args` make it tiny, for tests. `load_args` make steps of some 50 to 300 ms, for measurements.
    `mesh` names the axes on which the ranks differ. `phases` must be recorded without a line added.
    `framework` is the one in use. `held_out` says that detectors are not tuned on this script. `file` is the
    script's, where it has another name.
    """

    name: str
    args: tuple[str, ...] = ()
    load_args: tuple[str, ...] = LOAD
    ranks: int = 2
    packages: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ("dp",)
    phases: tuple[str, ...] = ("forward", "backward", "optimizer")
    framework: str = ""
    held_out: bool = False
    file: str = ""

    @property
    def script(self) -> Path:
        return FOLDER / f"{self.file or self.name}.py"

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that are not installed here."""
        return tuple(p for p in self.packages if importlib.util.find_spec(p.partition(".")[0]) is None)


def _same(file: str, name: str, *flags: str, mesh: tuple[str, ...], held_out: bool = False) -> Job:
    """The script of another job with flags of its own."""
    return Job(f"{file}_{name}", flags, (*LOAD, *flags), mesh=mesh, held_out=held_out, file=file)


_INTERLEAVED = ("--schedule", "interleaved", "--layers", "8")  # two stages for each of four ranks
_WITH_DATA = ("data", "forward", "backward", "optimizer")
_JOBS = (
    Job("ddp", ("--eval-every", "4"), phases=("forward", "backward", "optimizer", "evaluation")),
    Job("fsdp2", held_out=True),
    Job("tensor_parallel", mesh=("tp",)),
    _same("tensor_parallel", "compiled", "--compile", "aot_eager", mesh=("tp",)),
    Job("pipeline", mesh=("pp",), held_out=True),
    _same("pipeline", "gpipe", "--schedule", "gpipe", mesh=("pp",), held_out=True),
    _same("pipeline", "interleaved", *_INTERLEAVED, mesh=("pp",), held_out=True),
    Job("moe", mesh=("ep",)),
    Job("loader", phases=_WITH_DATA),
    Job("compiled", ("--backend", "aot_eager"), held_out=True),
    Job(
        "trainer",
        phases=_WITH_DATA,
        packages=("transformers", "accelerate"),
        framework="transformers",
        held_out=True,
    ),
    Job("accelerate_loop", phases=_WITH_DATA, packages=("accelerate",), framework="accelerate"),
    Job("lightning_fit", phases=_WITH_DATA, packages=("lightning",), framework="lightning", held_out=True),
    Job("deepspeed_zero1", packages=("deepspeed",), framework="deepspeed", held_out=True),
    Job("megatron_core", packages=("megatron.core",), mesh=("tp",), framework="megatron-core"),
)
JOBS = MappingProxyType({job.name: job for job in _JOBS})
