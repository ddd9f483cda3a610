"""A gateway's journal: its requests, and what changed around them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decide.journal import DroppedRecord, Record, RequestRecord, ServingRecord


@dataclass(frozen=True)
class ServingRun:
    """What one journal says of serving. Times in a run count from its start.

    Attributes:
        label: how pictures and tables name it.
        requests: in the order in which they came.
        changes: of the fleet and of the policy, in order.
        dropped: what the writer had to leave out.
        zero_s: wall clock of the first record or arrival.
        end_s: seconds from there to the last record.
    """

    label: str
    requests: tuple[RequestRecord, ...]
    changes: tuple[ServingRecord, ...]
    dropped: tuple[DroppedRecord, ...]
    zero_s: float
    end_s: float

    @property
    def models(self) -> tuple[str, ...]:
        """The models asked for, the most asked for first."""
        counts: dict[str, int] = {}
        for request in self.requests:
            counts[request.group] = counts.get(request.group, 0) + 1
        return tuple(sorted(counts, key=lambda model: (-counts[model], model)))


def split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """(what is about serving, the rest) of a journal. What was dropped goes with serving if there is nothing else."""
    serving: list[Record] = [r for r in records if isinstance(r, RequestRecord | ServingRecord)]
    rest: list[Record] = [r for r in records if not isinstance(r, RequestRecord | ServingRecord)]
    if serving and all(isinstance(r, DroppedRecord) for r in rest):
        return [*serving, *rest], []
    return serving, rest


def serving_run(label: str, records: Sequence[Record]) -> ServingRun | None:
    """The run in a journal's records; None where they say nothing of serving."""
    records, _ = split(records)
    if not records:
        return None
    requests = sorted((r for r in records if isinstance(r, RequestRecord)), key=lambda r: r.arrived_s)
    zero_s = min([r.t_s for r in records] + [r.arrived_s for r in requests[:1]])
    return ServingRun(
        label=label,
        requests=tuple(requests),
        changes=tuple(r for r in records if isinstance(r, ServingRecord)),
        dropped=tuple(r for r in records if isinstance(r, DroppedRecord)),
        zero_s=zero_s,
        end_s=max(r.t_s for r in records) - zero_s,
    )


def actual_s(request: RequestRecord) -> float | None:
    """Time from sending to the first token, which a prediction is held against; None where there was none, s."""
    if request.ttft_s is None or request.sent_s is None:
        return None
    return request.ttft_s - request.sent_s
