"""Which fleet is simulated: nodes, ranks, their mesh, and how fast it trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pulsetrain.core.errors import UsageError
from pulsetrain.simulate.spec import FleetSpec, node_name
from pulsetrain.simulate.timing import simulate_step

NORM_S = 0.002  # the all-reduce over all ranks that ends each step


@dataclass(frozen=True, kw_only=True)
class LiveFleet:
    """`nodes` run ranks and `standbys` wait. `dp` of 0 is what is left of the ranks after `tp` and `pp`.

    Raises `UsageError` for a shape that is not possible.
    """

    nodes: int
    standbys: int = 2
    ranks_per_node: int = 8
    tp: int = 1
    pp: int = 1
    dp: int = 0
    step_s: float = 2.0
    """length of a step of a healthy fleet"""
    checkpoint_every: int = 10
    """steps between two checkpoints, 0: none"""
    checkpoint_bytes: int = 16 << 30
    """state of one rank"""
    relaunch_s: float = 3.0
    """from the last launch command to the beginning of the first step"""
    seed: int = 0
    job: str = "simulated-live"

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node", "tp", "pp"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} = {getattr(self, name)}: allowed 1 or more")
        for name in ("standbys", "dp", "checkpoint_every", "checkpoint_bytes", "relaunch_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"--{name.replace('_', '-')} = {getattr(self, name)}: allowed 0 or more")
        if self.step_s < 0.1:
            raise UsageError(f"--step-s = {self.step_s}: allowed 0.1 or more")
        fixed = self.tp * self.pp * max(1, self.dp)
        if self.ranks % fixed or (self.dp and self.ranks != fixed):
            product = f"tp x pp x dp = {fixed}" if self.dp else f"tp x pp = {fixed}"
            raise UsageError(
                f"{self.nodes} nodes x {self.ranks_per_node} = {self.ranks} ranks: "
                f"{'not' if self.dp else 'not a multiple of'} {product}"
            )

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.ranks_per_node

    @property
    def names(self) -> tuple[str, ...]:
        """Every node, the standbys last."""
        return tuple(node_name(i) for i in range(self.nodes + self.standbys))

    def spec(self) -> FleetSpec:
        """The job as the generator of records wants it. Its steps take `step_s` where nothing is wrong."""
        spec = FleetSpec(
            ranks=self.ranks,
            tp=self.tp,
            pp=self.pp,
            microbatches=1,
            ranks_per_node=self.ranks_per_node,
            seed=self.seed,
            job=self.job,
            norm_s=NORM_S,
        )
        even = replace(spec, noise=0.0)
        ratio = self.step_s / simulate_step(even, 0).length
        scaled = ("forward_s", "optimizer_s", "data_s", "tp_s", "p2p_s", "dp_s", "norm_s")
        return replace(spec, **{name: getattr(spec, name) * ratio for name in scaled})
