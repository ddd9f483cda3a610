"""The journal: one JSON line for every thing that was seen, tried, kept or reverted.

`docs/journal.md` documents the format. Every record has `v` (format version), `kind`, `t_s` (wall clock, seconds
since the epoch) and `group`. Reading ignores unknown fields, so that an older Headway reads a newer journal of the
same major version; an unknown `kind` or another `v` is an error that names the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from headway.errors import UsageError

VERSION: Literal[1] = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = 1
    t_s: float
    group: str = "default"


class FindingRecord(BaseModel):
    """A finding in words and numbers, as `observe.findings.Finding`."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    link: str
    capacity_Bps: float
    baseline_Bps: float
    pattern: str
    samples: int


class OptionRecord(BaseModel):
    """One plan that was considered."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    plan: str
    predicted_s: float
    bottleneck: str
    tabu: bool = False


class StartRecord(_Record):
    """A group was created: who takes part, where, under which policy.

    `hosts` and `racks` are per rank: hosts[r] is the name of rank r's host, racks[r] of that host's rack (empty for
    a single switch). `plan` is the plan in force from operation 0, `plan_trees` its trees as text.
    """

    kind: Literal["start"] = "start"
    world_size: int
    hosts: list[str]
    policy: str
    settings: dict[str, str] = Field(default_factory=dict)
    racks: list[str] = Field(default_factory=list)
    plan: str = ""
    plan_trees: str = ""


class OperationRecord(_Record):
    """One collective as rank `rank` saw it. `t_s` is its end; it began `duration_s` earlier."""

    kind: Literal["operation"] = "operation"
    rank: int
    operation: int
    collective: str
    size_bytes: int
    plan: str
    duration_s: float
    limit_s: float | None = None


class FlowRecord(_Record):
    """What one flow did in one epoch: the signals. `t_s` is the end of the epoch, `span_s` how long it was."""

    kind: Literal["flow"] = "flow"
    epoch: int
    src: int
    dst: int
    acked_bytes: int
    network_limited_s: float
    rate_Bps: float | None = None
    rtt_s: float | None = None
    retransmits: int | None = None
    span_s: float | None = None


class DecisionRecord(_Record):
    """What rank 0 decided at the end of an epoch, and why.

    `action` is one of hold, try, keep, revert, restore (back to the idle plan for good). `collective` is the one
    whose plan it is about; empty: of all. `plan_trees` is `plan_after` as text. Times are of one operation of
    `size_bytes`: predicted for `plan_after`, measured in this epoch, the reference that a trial is held against, and
    the lower bound.
    """

    kind: Literal["decision"] = "decision"
    epoch: int
    action: Literal["hold", "try", "keep", "revert", "restore"]
    collective: str = ""
    size_bytes: int | None = None
    reason: str
    from_operation: int
    plan_before: str
    plan_after: str
    plan_trees: str = ""
    predicted_s: float | None = None
    measured_s: float | None = None
    reference_s: float | None = None
    limit_s: float | None = None
    findings: list[FindingRecord] = Field(default_factory=list)
    options: list[OptionRecord] = Field(default_factory=list)
    reroutes: list[str] = Field(default_factory=list)


class EventRecord(_Record):
    """Something that happened to the network, written by the lab (ground truth, never read by the tuner).

    `links` names the links that lose capacity, as findings name them: "downlink of host 3".
    """

    kind: Literal["event"] = "event"
    event: str
    phase: Literal["begin", "end"]
    what: str
    links: list[str] = Field(default_factory=list)


class FailureRecord(_Record):
    """An operation failed: who is blamed, in which operation."""

    kind: Literal["failure"] = "failure"
    rank: int
    blamed_rank: int | None = None
    operation: str
    what: str


class InterleaveRecord(_Record):
    """What interleaving had learnt of the job on one rank when its group ended; see `interleave.controller.Report`."""

    kind: Literal["interleave"] = "interleave"
    rank: int
    actuator: str
    iterations: int
    iteration_bytes: int | None = None
    period_s: float | None = None
    isolated_s: float | None = None
    overlap: float | None = None
    settled_after: int | None = None
    settled: bool = False


class RouteOption(BaseModel):
    """One replica that could have answered a request, as it looked at that moment."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    replica: str
    hit_tokens: int
    requests: int
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    score: float | None = None


class RequestRecord(_Record):
    """One request to a model: where it went and why, and what became of it. `group` is the model; `t_s` is its end.

    `by` is the rule that chose: the policy's name, or that of the heuristic that it fell back to. `arrived_s` and
    `t_s` are wall clock; `ttft_s` and `e2e_s` count from `arrived_s`, and so does `sent_s`, when it was sent to the
    replica that answered (`attempts` - 1 others had failed before the first byte). `predicted_ttft_s` and `hit_tokens`
    are what was expected of that replica; `cached_tokens` is what the engine reported. `options` are in the order in
    which the policy saw them.
    """

    kind: Literal["request"] = "request"
    request: str
    arrived_s: float
    sent_s: float | None = None
    replica: str = ""
    policy: str
    by: str = ""
    reason: str = ""
    input_tokens: int
    hit_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    predicted_ttft_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    status: int
    end: Literal["done", "cancelled", "failed", "refused"]
    attempts: int = 1
    session: str = ""
    workflow: str = ""
    prefix_blocks: list[int] = Field(default_factory=list)
    block_tokens: int | None = None
    options: list[RouteOption] = Field(default_factory=list)


class ServingRecord(_Record):
    """Something about a fleet of replicas, or about the policy that routes for it, changed.

    `what` says it in a sentence. Of a guard-rail's move, `measured_s` is the mean TTFT of the learned policy's requests
    and `reference_s` that of the heuristic's.
    """

    kind: Literal["serving"] = "serving"
    event: Literal["join", "leave", "silent", "heard", "down", "up", "model", "fall-back", "trust"]
    replica: str = ""
    policy: str = ""
    what: str
    samples: int | None = None
    measured_s: float | None = None
    reference_s: float | None = None


class DroppedRecord(_Record):
    """The writer had to leave out `count` records before this one."""

    kind: Literal["dropped"] = "dropped"
    count: int
    what: str


Record = Annotated[
    StartRecord
    | OperationRecord
    | FlowRecord
    | DecisionRecord
    | EventRecord
    | FailureRecord
    | InterleaveRecord
    | RequestRecord
    | ServingRecord
    | DroppedRecord,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Record] = TypeAdapter(Record)


class Journal(Protocol):
    """Where records go. Never raises into the operation that writes; counts what it had to drop."""

    @property
    def dropped(self) -> int:
        """Records that could not be written (count)."""
        ...

    def write(self, record: Record) -> None:
        """Append one record."""
        ...


class MemoryJournal:
    """Keeps the records in a list: for tests and for short runs."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.dropped = 0

    def write(self, record: Record) -> None:
        """Append one record."""
        self.records.append(record)


def to_line(record: Record) -> str:
    """One record as one JSON line, without the newline."""
    return record.model_dump_json(exclude_none=True)


def parse_lines(lines: Iterable[str], *, where: str) -> Iterator[Record]:
    """Records of a journal's lines; UsageError names file and line of a bad one. Blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _ADAPTER.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "record"
            raise UsageError(
                f"{field}: {first['msg']}",
                where=f"{where}:{number}",
                hint="see docs/journal.md for the format",
            ) from None
