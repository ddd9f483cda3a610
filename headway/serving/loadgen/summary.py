"""What all rows of a run come to. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headway.serving.loadgen.row import DONE, STOPPED, Row

DISTORTED_S = 0.02
"""Our own delay from which the figures are not the server's: about what a token takes on a fast GPU."""
SHOWN_REASONS = 8

_NUMBER = re.compile(r"\d+(\.\d+)?")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """Of one replica: requests that it answered, of which so many were done, and their times to the first token."""

    replica: str
    requests: int
    done: int
    ttft_s: Floats
    cached_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures. Latencies are of the requests that were done; arrays are in no particular order, seconds.

    Attributes:
        requests, sent, done: counts.
        failures: count by kind, most frequent first; the stopped ones are not among them.
        stopped: requests that we ended or never sent, because the run was stopped.
        duration_s: of the run.
        input_tokens, output_tokens: of the requests that were done.
        cached_tokens: of these prompts, from the servers' prefix caches; None where no server said so.
        offered_rate: requests per second that the load has between its first and last; 0: one instant.
        sent_rate: that were sent per second in the same way.
        ttft_s, tpot_s, itl_s, e2e_s: latencies.
        good: done within the goals; None where there are none.
        peak_streams: most requests open at a time.
        peak_output_rate: most tokens in one second (of the run's seconds).
        late_s: how late requests were sent.
        lag_p99_s, lag_max_s: how late the event loop was.
        shares: by replica, where the gateway names them.
        reasons: count of the gateway's reasons, with # for each number in them; the most frequent ones.
        retry_after_s: what 429s and 503s asked for.
        told_to_wait: 429s and 503s, whether they said how long or not.
    """

    requests: int
    sent: int
    done: int
    failures: dict[str, int]
    stopped: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    offered_rate: float
    sent_rate: float
    ttft_s: Floats
    tpot_s: Floats
    itl_s: Floats
    e2e_s: Floats
    good: int | None
    peak_streams: int
    peak_output_rate: int
    late_s: Floats
    lag_p99_s: float
    lag_max_s: float
    shares: tuple[Share, ...]
    reasons: dict[str, int]
    retry_after_s: Floats
    told_to_wait: int

    @property
    def distorted(self) -> str:
        """Why the generator itself was the bottleneck, in words; empty: it was not."""
        late_p99_s = quantile(self.late_s, 0.99)
        if late_p99_s > DISTORTED_S:
            return (
                f"1 % of the requests were sent more than {late_p99_s * 1e3:.0f} ms late: the load was less than asked "
                f"for ({self.sent_rate:.2f} of {self.offered_rate:.2f} requests/s)"
            )
        if self.lag_p99_s > DISTORTED_S:
            return f"its event loop lagged by {self.lag_p99_s * 1e3:.0f} ms (P99): latencies are too high by as much"
        return ""


def summarize(
    rows: Sequence[Row],
    *,
    duration_s: float,
    lag_s: Iterable[float] = (),
    slo_ttft_s: float | None = None,
    slo_tpot_s: float | None = None,
    slo_e2e_s: float | None = None,
) -> Summary:
    """The figures of a run.

    A request is good if it was done and met each goal that is set; one of a single token has no TPOT to miss.
    """
    sent = [row for row in rows if row.sent_s is not None]
    done = [row for row in rows if row.end == DONE]
    failures = Counter(row.end for row in rows if row.end not in (DONE, STOPPED))
    cached = [row.cached_tokens for row in done if row.cached_tokens is not None]
    goals = (slo_ttft_s, slo_tpot_s, slo_e2e_s)
    lags = np.fromiter(lag_s, dtype=float)
    waits = [row for row in rows if row.status in (429, 503)]
    return Summary(
        requests=len(rows),
        sent=len(sent),
        done=len(done),
        failures=dict(failures.most_common()),
        stopped=sum(row.end == STOPPED for row in rows),
        duration_s=duration_s,
        input_tokens=sum(row.asked_tokens for row in done),
        output_tokens=sum(row.generated_tokens for row in done),
        cached_tokens=sum(cached) if cached else None,
        offered_rate=_rate([row.due_s for row in rows]),
        sent_rate=_rate([row.sent_s for row in sent if row.sent_s is not None]),
        ttft_s=_floats(row.ttft_s for row in done),
        tpot_s=_floats(row.tpot_s for row in done),
        itl_s=np.fromiter(chain.from_iterable(row.gaps_s for row in done), dtype=float),
        e2e_s=_floats(row.e2e_s for row in done),
        good=sum(_meets(row, goals) for row in done) if any(goal is not None for goal in goals) else None,
        peak_streams=_peak_streams(sent),
        peak_output_rate=_peak_output_rate(sent),
        late_s=_floats(row.late_s for row in sent),
        lag_p99_s=quantile(lags, 0.99),
        lag_max_s=float(lags.max(initial=0.0)),
        shares=_shares(rows),
        reasons=dict(Counter(_NUMBER.sub("#", row.reason) for row in rows if row.reason).most_common(SHOWN_REASONS)),
        retry_after_s=_floats(row.retry_after_s for row in waits),
        told_to_wait=len(waits),
    )


def quantile(values: Floats, level: float) -> float:
    """Linear between neighbours; 0 where there are none, as `vllm bench serve` has it."""
    return float(np.quantile(values, level)) if len(values) else 0.0


def mean(values: Floats) -> float:
    """0 where there are none."""
    return float(values.mean()) if len(values) else 0.0


def _floats(values: Iterable[float | None]) -> Floats:
    return np.fromiter((value for value in values if value is not None), dtype=float)


def _rate(times_s: Sequence[float]) -> float:
    span_s = max(times_s, default=0.0) - min(times_s, default=0.0)
    return (len(times_s) - 1) / span_s if span_s > 0 else 0.0


def _meets(row: Row, goals: tuple[float | None, float | None, float | None]) -> bool:
    measured = (row.ttft_s, row.tpot_s, row.e2e_s)
    return all(goal is None or value is None or value <= goal for value, goal in zip(measured, goals, strict=True))


def _peak_streams(sent: Sequence[Row]) -> int:
    begins = np.sort(_floats(row.sent_s for row in sent))
    ends = np.sort(_floats((row.sent_s or 0.0) + (row.e2e_s or 0.0) for row in sent))
    open_ = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return int(open_.max(initial=0))


def _peak_output_rate(sent: Sequence[Row]) -> int:
    times = [
        (row.sent_s or 0.0) + row.ttft_s + np.concatenate(([0.0], np.cumsum(row.gaps_s)))
        for row in sent
        if row.ttft_s is not None
    ]
    return int(np.bincount(np.concatenate(times).astype(int)).max(initial=0)) if times else 0


def _shares(rows: Sequence[Row]) -> tuple[Share, ...]:
    by_replica: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.replica:
            by_replica[row.replica].append(row)
    return tuple(
        Share(
            replica=replica,
            requests=len(own),
            done=sum(row.end == DONE for row in own),
            ttft_s=_floats(row.ttft_s for row in own if row.end == DONE),
            cached_tokens=sum(row.cached_tokens or 0 for row in own if row.end == DONE),
            prompt_tokens=sum(row.asked_tokens for row in own if row.end == DONE),
        )
        for replica, own in sorted(by_replica.items())
    )
