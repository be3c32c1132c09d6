"""The one definition of every record: names, types, units and meanings.

Column types, Arrow schemas, ClickHouse DDL, the fleet generator and docs/records.md are derived from it.
Changes only add: `SCHEMA_VERSION` rises when a record gains a field, and a reader fills a field that an
older writer did not send with the field's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

SCHEMA_VERSION = 2


class Kind(Enum):
    """A field's type: its code in a batch's bytes, and its ClickHouse type."""

    NAME = ("name", "LowCardinality(String)")
    TEXT = ("text", "String")
    JSON = ("json", "String")
    I32 = ("i32", "Int32")
    I64 = ("i64", "Int64")
    F64 = ("f64", "Float64")
    MAYBE = ("maybe", "Nullable(Float64)")
    BOOL = ("bool", "Bool")
    TIME = ("time", "DateTime64(9, 'UTC')")

    @property
    def code(self) -> str:
        """Name of the type in encoded batches. It never changes."""
        return self.value[0]

    @property
    def clickhouse(self) -> str:
        return self.value[1]


_DEFAULTS: Mapping[Kind, object] = {
    Kind.NAME: "",
    Kind.TEXT: "",
    Kind.JSON: "{}",
    Kind.I32: -1,
    Kind.I64: 0,
    Kind.F64: float("nan"),
    Kind.MAYBE: None,
    Kind.BOOL: False,
    Kind.TIME: 0,
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One column. `unit` is empty for names and counts. `since` is the schema version that added it."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    since: int = 1
    missing: object = None
    """what a reader uses where an older writer sent nothing, None: the default of the kind"""

    @property
    def default(self) -> object:
        """What a reader uses where an older writer sent nothing."""
        return _DEFAULTS[self.kind] if self.missing is None else self.missing


@dataclass(frozen=True, kw_only=True)
class Record:
    """One table, topic and Parquet file. `order_by` is the sorting key. `time` partitions and expires."""

    name: str
    meaning: str
    fields: tuple[Field, ...]
    order_by: tuple[str, ...]
    time: str
    ttl_days: int

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)


def _f(name: str, kind: Kind, meaning: str, unit: str = "", since: int = 1) -> Field:
    return Field(name=name, kind=kind, meaning=meaning, unit=unit, since=since)


_JOB = _f("job", Kind.NAME, "name of the training job")
_ATTEMPT = _f("attempt", Kind.I32, "launch of the job, counted from 0")
_NODE = _f("node", Kind.NAME, "node as the inventory names it")
_RANK = _f("rank", Kind.I32, "global rank, -1 for none")
_STEP = _f("step", Kind.I64, "optimizer step")
_TS = _f("ts", Kind.TIME, "when it happened", "UTC")

PHASES = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "barrier",
    "send",
    "recv",
    "gc",
    "cpu_wait",
    "off_cpu",
    "device_wait",
)
CATEGORIES = ("compute", "communication", "data", "checkpoint", "other")

_ALL = (
    Record(
        name="spans",
        meaning="one timed piece of work of one rank",
        order_by=("job", "attempt", "step", "rank", "start"),
        time="start",
        ttl_days=14,
        fields=(
            _JOB,
            _ATTEMPT,
            _NODE,
            _RANK,
            _STEP,
            _f("microbatch", Kind.I32, "microbatch inside the step, -1 for none"),
            _f("phase", Kind.NAME, f"one of {', '.join(PHASES)}, or the user's own name"),
            _f("category", Kind.NAME, f"one of {', '.join(CATEGORIES)}"),
            _f("lane", Kind.NAME, "what runs one span at a time: a CUDA stream, or the host thread"),
            _f("group", Kind.NAME, "process group of a communication span, empty for none"),
            _f("seq", Kind.I64, "sequence number of a communication span in its group, -1 for none"),
            _f("bytes", Kind.I64, "payload of a communication span", "bytes"),
            _f("start", Kind.TIME, "when it began", "UTC"),
            _f("duration_ns", Kind.I64, "how long it took, or its age so far if `open`", "ns"),
            _f("open", Kind.BOOL, "it had not ended when it was reported"),
            _f("parent", Kind.NAME, "phase it ran inside, on the same lane, empty for none"),
            Field(
                name="blocked_ns",
                kind=Kind.I64,
                meaning="how long the rank's main thread stood still for communication in it, -1 if unknown",
                unit="ns",
                since=2,
                missing=-1,
            ),
            _f("peer", Kind.I32, "global rank at the other end of a send or recv, -1 for none", since=2),
        ),
    ),
    Record(
        name="steps",
        meaning="one optimizer step of one rank",
        order_by=("job", "attempt", "step", "rank"),
        time="start",
        ttl_days=90,
        fields=(
            _JOB,
            _ATTEMPT,
            _NODE,
            _RANK,
            _STEP,
            _f("start", Kind.TIME, "when the step began", "UTC"),
            _f("duration_ns", Kind.I64, "wall time of the step", "ns"),
            _f("tokens", Kind.I64, "tokens this rank processed in the step"),
            _f("flops", Kind.F64, "model FLOPs this rank owed for the step, NaN if unknown"),
            _f("loss", Kind.MAYBE, "training loss, NULL if this rank does not log it. NaN is a real NaN"),
            _f("grad_norm", Kind.MAYBE, "gradient norm, NULL if not logged. NaN is a real NaN"),
        ),
    ),
    Record(
        name="topology",
        meaning="where one rank of one attempt stands",
        order_by=("job", "attempt", "rank"),
        time="ts",
        ttl_days=365,
        fields=(
            _JOB,
            _ATTEMPT,
            _RANK,
            _f("local_rank", Kind.I32, "rank on its node"),
            _NODE,
            _f("ip", Kind.NAME, "address of the node"),
            _f("switch", Kind.NAME, "access switch (ToR) of the node, empty if unknown"),
            _f("tp", Kind.I32, "tensor-parallel coordinate"),
            _f("pp", Kind.I32, "pipeline stage"),
            _f("dp", Kind.I32, "data-parallel coordinate"),
            _f("cp", Kind.I32, "context-parallel coordinate"),
            _f("ep", Kind.I32, "expert-parallel coordinate"),
            _TS,
        ),
    ),
    Record(
        name="heartbeats",
        meaning="a sign of life of a rank or of a node",
        order_by=("node", "ts", "rank"),
        time="ts",
        ttl_days=3,
        fields=(
            _NODE,
            _TS,
            _f("seq", Kind.I64, "number of the heartbeat since the agent started"),
            _JOB,
            _ATTEMPT,
            _f("rank", Kind.I32, "global rank, -1 for the node itself"),
            _f("pid", Kind.I32, "process"),
            _f("state", Kind.NAME, "running, sleeping, disk, stopped, zombie or gone, as /proc has it"),
            _f("last_step", Kind.I64, "last step that the rank completed, -1 for none"),
            _f("last_phase", Kind.NAME, "phase or operation the rank is in"),
            _f("phase_age_ns", Kind.I64, "how long it has been in it", "ns"),
        ),
    ),
    Record(
        name="metrics",
        meaning="one sample of one counter or gauge",
        order_by=("node", "name", "device", "ts"),
        time="ts",
        ttl_days=30,
        fields=(
            _NODE,
            _f("device", Kind.NAME, "GPU UUID, NIC port or process, empty for the node"),
            _f("name", Kind.NAME, "metric name, with its unit as suffix"),
            _TS,
            _f("value", Kind.F64, "sample. Cumulative counters stay cumulative"),
        ),
    ),
    Record(
        name="logs",
        meaning="one line that a rank, a node or the kernel wrote",
        order_by=("job", "attempt", "node", "ts"),
        time="ts",
        ttl_days=14,
        fields=(
            _TS,
            _NODE,
            _JOB,
            _ATTEMPT,
            _RANK,
            _f("source", Kind.NAME, "stdout, stderr, kmsg, agent or hub"),
            _f("severity", Kind.NAME, "debug, info, warning, error or critical"),
            _f("message", Kind.TEXT, "the line"),
            _f("rule", Kind.NAME, "log rule that matched, empty for none"),
        ),
    ),
    Record(
        name="events",
        meaning="something that somebody did or that changed",
        order_by=("ts", "kind"),
        time="ts",
        ttl_days=365,
        fields=(
            _TS,
            _NODE,
            _JOB,
            _ATTEMPT,
            _RANK,
            _f("kind", Kind.NAME, "what: attempt_started, rank_exit, node_lost, evict, restore, ..."),
            _f("actor", Kind.NAME, "who: controller, agent, hub, or a person's name"),
            _f("detail", Kind.JSON, "reason and evidence", "JSON"),
        ),
    ),
    Record(
        name="findings",
        meaning="one verdict that names something",
        order_by=("job", "ts", "kind"),
        time="ts",
        ttl_days=365,
        fields=(
            _TS,
            _JOB,
            _ATTEMPT,
            _f("kind", Kind.NAME, "straggler, fail_slow, hang, crash, node_lost, mfu_decay, nan, ..."),
            _f("subject_type", Kind.NAME, "job, node, rank, gpu, link, group or stage"),
            _f("subject", Kind.TEXT, "which one"),
            _f("severity", Kind.NAME, "info, warning or critical"),
            _f("confidence", Kind.F64, "calibrated probability that the subject is at fault", "ratio 0..1"),
            _f("summary", Kind.TEXT, "one sentence"),
            _f("evidence", Kind.JSON, "the query and the numbers", "JSON"),
        ),
    ),
    Record(
        name="checkpoints",
        meaning="one stage of one checkpoint of one rank",
        order_by=("job", "attempt", "step", "rank", "ts"),
        time="ts",
        ttl_days=90,
        fields=(
            _TS,
            _JOB,
            _ATTEMPT,
            _RANK,
            _STEP,
            _f(
                "stage",
                Kind.NAME,
                "copy, stall (of training), replicate, persist, commit, restore, read, skip, or write (the "
                "script's own)",
            ),
            _f("tier", Kind.NAME, "memory, peer or storage"),
            _f("bytes", Kind.I64, "payload", "bytes"),
            _f("duration_ns", Kind.I64, "how long the stage took", "ns"),
        ),
    ),
)

RECORDS: Mapping[str, Record] = MappingProxyType({record.name: record for record in _ALL})
