"""What became of each request of a simulated run, and in sum. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.decide.journal import Journal, Record, RequestRecord, ServingRecord


@dataclass(frozen=True, slots=True)
class Row:
    """One request.

    Attributes:
        id: its number in the load, from 0, as text.
        at_s: when it came to the gateway, seconds from the run's begin; its times count from there.
        replica: who answered, or was the last to try; empty: it was never sent.
        by: the rule that chose.
        attempts: how often it was sent (count).
        status: what the client got, as in HTTP: 200, 400 (the engine refused it), 502 (failed), 503 (no replica).
        input_tokens, output_tokens: of the prompt; that came back.
        hit_tokens: of the prompt, that the router expected in the cache.
        cached_tokens: of the prompt, that were there; None where the engine never said.
        predicted_ttft_s: from when it was sent; None where the rule predicts nothing.
        sent_s, ttft_s, e2e_s: from `at_s`, seconds; None where it did not come to that.
    """

    id: str
    at_s: float
    replica: str
    by: str
    attempts: int
    status: int
    input_tokens: int
    output_tokens: int
    hit_tokens: int
    cached_tokens: int | None
    predicted_ttft_s: float | None
    sent_s: float | None
    ttft_s: float | None
    e2e_s: float

    @property
    def done(self) -> bool:
        """Whether it was answered to the end."""
        return self.status == 200

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, seconds; None where there was no second."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some times: mean and percentiles (interpolated), seconds; all NaN where there are none."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


def spread(times_s: Sequence[float]) -> Spread:
    """Their mean and percentiles."""
    if not times_s:
        return Spread(*[float("nan")] * 4)
    return Spread(float(np.mean(times_s)), *(float(it) for it in np.percentile(times_s, (50, 90, 99))))


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the requests after the warm-up.

    Attributes:
        requests, done, refused, failed: counts; refused are those of status 400 and 503, failed the other ones.
        ttft, tpot, e2e: of those done.
        rate: requests that came per second.
        goodput: of those, that were done within the goals, per second.
        cached_share: of the prompts' tokens of those done, from prefix caches (1).
        per_replica: requests that each answered, or was the last to try.
    """

    requests: int
    done: int
    refused: int
    failed: int
    ttft: Spread
    tpot: Spread
    e2e: Spread
    rate: float
    goodput: float
    cached_share: float
    per_replica: Mapping[str, int]


def summary(
    rows: Sequence[Row],
    *,
    warm_up_requests: int = 0,
    warm_up_s: float = 0.0,
    slo_ttft_s: float = float("inf"),
    slo_tpot_s: float = float("inf"),
) -> Summary:
    """The rows in sum.

    Args:
        rows: in order of arrival.
        warm_up_requests, warm_up_s: leave out the first so many, and those that came before that time.
        slo_ttft_s, slo_tpot_s: goals of the goodput.
    """
    counted = [row for row in rows[warm_up_requests:] if row.at_s >= warm_up_s]
    done = [row for row in counted if row.done]
    refused = sum(1 for row in counted if row.status in (400, 503))
    ttfts_s = [row.ttft_s for row in done if row.ttft_s is not None]
    tpots_s = [row.tpot_s for row in done if row.tpot_s is not None]
    good = [row for row in done if (row.ttft_s or 0) <= slo_ttft_s and (row.tpot_s or 0) <= slo_tpot_s]
    span_s = counted[-1].at_s - counted[0].at_s if counted else 0.0
    input_tokens = sum(row.input_tokens for row in done)
    return Summary(
        requests=len(counted),
        done=len(done),
        refused=refused,
        failed=len(counted) - len(done) - refused,
        ttft=spread(ttfts_s),
        tpot=spread(tpots_s),
        e2e=spread([row.e2e_s for row in done]),
        rate=len(counted) / span_s if span_s else 0.0,
        goodput=len(good) / span_s if span_s else 0.0,
        cached_share=sum(row.cached_tokens or 0 for row in done) / input_tokens if input_tokens else 0.0,
        per_replica=dict(sorted(Counter(row.replica for row in counted if row.replica).items())),
    )


class Collector:
    """A journal that keeps the requests as rows and the fleet's and the policy's records as they are.

    Attributes:
        rows: in the order in which the requests ended.
        records: what changed in the fleet or the policy.
        dropped: never any.

    Args:
        onward: gets every record too; None: nobody.
        each: called with each row as the request ends; it may stop the run.
    """

    def __init__(self, onward: Journal | None = None, each: Callable[[Row], None] | None = None) -> None:
        self.rows: list[Row] = []
        self.records: list[ServingRecord] = []
        self.dropped = 0
        self._onward = onward
        self._each = each

    def write(self, record: Record) -> None:
        """Take one record."""
        if self._onward is not None:
            self._onward.write(record)
        if isinstance(record, ServingRecord):
            self.records.append(record)
        elif isinstance(record, RequestRecord):
            row = Row(
                id=record.request,
                at_s=record.arrived_s,
                replica=record.replica,
                by=record.by,
                attempts=record.attempts,
                status=record.status,
                input_tokens=record.input_tokens,
                output_tokens=record.output_tokens,
                hit_tokens=record.hit_tokens or 0,
                cached_tokens=record.cached_tokens,
                predicted_ttft_s=record.predicted_ttft_s,
                sent_s=record.sent_s,
                ttft_s=record.ttft_s,
                e2e_s=record.e2e_s,
            )
            self.rows.append(row)
            if self._each is not None:
                self._each(row)
