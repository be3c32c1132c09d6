"""What a job runs on: the models of its nodes' GPUs, as agents reported them, and whether it uses them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from pulsetrain.analytics.machines.hardware import address
from pulsetrain.analytics.slowness.device_peaks import Peak, peaks
from pulsetrain.stream.queries import machines
from pulsetrain.stream.queries.queryable import AttemptSteps, Queryable


@dataclass(frozen=True, kw_only=True)
class JobHardware:
    """`models` names the model of each GPU by node and UUID. `uses_gpus`: ranks work on them.

    `uuids` names the UUID of each GPU by node and PCI address.
    """

    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    uuids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    uses_gpus: bool = False

    @classmethod
    def read(cls, store: Queryable, steps: AttemptSteps) -> JobHardware:
        """What the store says of the nodes of an attempt."""
        found = cls._listed(store, steps)
        return replace(found, uses_gpus=bool(found.models) and machines.uses_gpus(store, steps))

    @classmethod
    def read_at(cls, store: Queryable, during: machines.AttemptTime) -> JobHardware:
        """The same of an attempt whose ranks name no steps, and so time no work on GPUs.

        It uses its nodes' GPUs, unless samples say that none did anything in this time.
        """
        found = cls._listed(store, during)
        return replace(found, uses_gpus=bool(found.models) and not machines.gpus_were_idle(store, during))

    @classmethod
    def _listed(cls, store: Queryable, of: AttemptSteps | machines.AttemptTime) -> JobHardware:
        rows = machines.gpu_inventories(store, of).to_pylist()
        models = {row["node"]: models_in(row["detail"]) for row in rows}
        models = {node: found for node, found in models.items() if found}
        return cls(models=models, uuids={row["node"]: uuids_in(row["detail"]) for row in rows})

    @property
    def by_uuid(self) -> dict[str, str]:
        """The model of each GPU by UUID."""
        return {uuid: model for of_node in self.models.values() for uuid, model in of_node.items()}

    def unlike(self, nodes: Iterable[str]) -> list[str]:
        """The models of the GPUs of these nodes, one entry for each rank. Empty where they are alike.

        Models of one node are joined, and "" is one that is not known. Empty where the job does not use GPUs.

        >>> mixed = {"a": {"GPU-1": "NVIDIA H100"}, "b": {"GPU-2": "NVIDIA A100"}}
        >>> JobHardware(models=mixed, uses_gpus=True).unlike(["a", "a", "b"])
        ['NVIDIA H100', 'NVIDIA H100', 'NVIDIA A100']
        >>> JobHardware(models=mixed, uses_gpus=True).unlike(["a", "a"])
        []
        """
        found = ["+".join(sorted(set(self.models.get(node, {}).values()))) for node in nodes]
        return found if self.uses_gpus and len(set(found) - {""}) > 1 else []

    @property
    def calibrated(self) -> bool:
        """Whether the calibration table was counted on such machines: without GPUs."""
        return not self.models

    def peak(self, nodes: Iterable[str]) -> Peak | None:
        """The mean peak of the GPUs of these nodes, one entry for each rank.

        None where the job does not use GPUs, or a node's model is not known.

        >>> h200 = {"a": {"GPU-1": "NVIDIA H200"}}
        >>> JobHardware(models=h200, uses_gpus=True).peak(["a", "a"]).device
        'H200'
        >>> JobHardware(models=h200, uses_gpus=True).peak(["a", "b"]) is None
        True
        """
        if not self.uses_gpus:
            return None
        found = [peak_of(model) for node in nodes for model in set(self.models.get(node, {"": ""}).values())]
        known = [peak for peak in found if peak is not None]
        if not known or len(known) < len(found):
            return None
        names = {name: "+".join(sorted({getattr(p, name) for p in known})) for name in ("device", "dtype")}
        return Peak(
            **names,
            flops_per_s=sum(p.flops_per_s for p in known) / len(known),
            source=f"{known[0].source}; the driver's model, data type assumed",
        )


def models_in(detail: str) -> dict[str, str]:
    """Models by UUID in the detail of an event of kind `gpus`. Empty for another form."""
    try:
        gpus = json.loads(detail)["gpus"]
        return {str(gpu["uuid"]): str(gpu["model"]) for gpu in gpus}
    except (ValueError, KeyError, TypeError):
        return {}


def uuids_in(detail: str) -> dict[str, str]:
    """UUIDs by PCI address in the detail of an event of kind `gpus`. Empty for another form.

    >>> uuids_in('{"gpus": [{"uuid": "GPU-1", "pci": "00000000:9B:00.0"}]}')
    {'0000:9b:00': 'GPU-1'}
    """
    try:
        return {address(str(gpu["pci"])): str(gpu["uuid"]) for gpu in json.loads(detail)["gpus"]}
    except (ValueError, KeyError, TypeError, IndexError):
        return {}


def peak_of(model: str) -> Peak | None:
    """The peak of a GPU by the name that its driver gives, None for an unknown one.

    >>> peak_of("NVIDIA H100 80GB HBM3").device, peak_of("NVIDIA H100 PCIe").device, peak_of("Quadro")
    ('H100-SXM', 'H100-PCIe', None)
    """
    row = next((row for row in _devices() if re.search(row["model"], model)), None)
    return peaks().get((row["device"], row["dtype"])) if row else None


@cache
def _devices() -> tuple[dict[str, str], ...]:
    text = files("pulsetrain.analytics").joinpath("tables/gpu_models.csv").read_text()
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
