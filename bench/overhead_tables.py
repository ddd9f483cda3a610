"""What `bench.gateway_overhead` measured, and the tables of it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.bench.markdown import table

DIRECT = "direct"
"""The target without a proxy, against which the others are held."""


@dataclass(frozen=True)
class Case:
    """What is sent: so many streamed requests per second with prompts of so many bytes."""

    rate_Hz: float
    prompt_bytes: int

    @property
    def name(self) -> str:
        """As the command line takes it."""
        return f"{self.rate_Hz:g}x{self.prompt_bytes // 1024}KiB"


@dataclass(frozen=True)
class Measured:
    """One target in one case and round.

    Attributes:
        sent, done: requests, and those that came back whole.
        ttft_p50_s, ttft_p99_s, e2e_p50_s, e2e_p99_s: of these; infinite where there is none.
        late_p99_s: how late the client itself was.
        cpu_s: processor time of the proxy, from before the first request to after the last; warm-up included.
        all_sent: the requests of that time.
        rss_MB: memory of the proxy afterwards.
        errors: what went wrong, most frequent first.
    """

    target: str
    rate_Hz: float
    prompt_bytes: int
    round: int
    sent: int
    done: int
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    late_p99_s: float
    cpu_s: float
    all_sent: int
    rss_MB: float
    errors: str

    @property
    def case(self) -> Case:
        """What was sent."""
        return Case(self.rate_Hz, self.prompt_bytes)

    @property
    def cpu_ms(self) -> float:
        """Processor time per request, ms; the same number is seconds per 1000 requests."""
        return 1e3 * self.cpu_s / max(1, self.all_sent)


@dataclass(frozen=True)
class Peak:
    """The most that one target held.

    Attributes:
        rate_Hz: requests per second; None when not even the lowest rate held.
        next_Hz: the lowest rate that was seen not to hold; None when all held.
        why: what failed there.
    """

    target: str
    rate_Hz: float | None
    next_Hz: float | None
    why: str


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above (nearest rank); infinite for none."""
    if not values:
        return math.inf
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def added_s(measured: Sequence[Measured], target: str, case: Case, of: Callable[[Measured], float]) -> list[float]:
    """By round: a figure of the target minus that of the direct way, in the same case."""
    direct = {m.round: of(m) for m in measured if m.target == DIRECT and m.case == case}
    ours = {m.round: of(m) for m in measured if m.target == target and m.case == case}
    return [ours[key] - direct[key] for key in sorted(ours.keys() & direct.keys())]


def spread(values: Sequence[float], scale: float, digits: int, sign: str = "-") -> str:
    """Median, and the range where there are several; `sign` "+": with their signs."""
    if not values:
        return ""
    scaled = sorted(value * scale for value in values)
    if math.isinf(scaled[-1]) or math.isnan(scaled[-1]):
        return "failed"
    median, least, most = (f"{each:{sign}.{digits}f}" for each in (statistics.median(scaled), scaled[0], scaled[-1]))
    return median if len(scaled) == 1 else f"{median} ({least} to {most})"


def latency_table(measured: Sequence[Measured]) -> str:
    """One line per case and target."""
    heads = ("req/s x prompt", "target", "TTFT p50, ms", "TTFT p99, ms", "e2e p50, ms", "e2e p99, ms")
    rows = []
    for case in dict.fromkeys(m.case for m in measured):
        for target in dict.fromkeys(m.target for m in measured if m.case == case):
            here = [m for m in measured if m.target == target and m.case == case]
            if target == DIRECT:
                figures = [spread([of(m) for m in here], 1e3, 2) for of in FIGURES]
            else:
                figures = [spread(added_s(measured, target, case, of), 1e3, 2, "+") for of in FIGURES]
            cpu = "" if target == DIRECT else spread([m.cpu_ms for m in here], 1, 2)
            rss = "" if target == DIRECT else f"{max(m.rss_MB for m in here):.0f}"
            failed = sum(m.sent - m.done for m in here)
            share = f"{failed} of {sum(m.sent for m in here)}" if failed else "0"
            rows.append((case.name, target, *figures, cpu, rss, share))
    return table((*heads, "CPU s per 1000", "MB", "failed"), rows)


FIGURES: tuple[Callable[[Measured], float], ...] = (
    lambda m: m.ttft_p50_s,
    lambda m: m.ttft_p99_s,
    lambda m: m.e2e_p50_s,
    lambda m: m.e2e_p99_s,
)


def peak_table(peaks: Sequence[Peak]) -> str:
    """One line per target."""
    rows = [
        (
            peak.target,
            "none" if peak.rate_Hz is None else f"{peak.rate_Hz:.0f}",
            "" if peak.next_Hz is None else f"{peak.next_Hz:.0f}",
            peak.why,
        )
        for peak in peaks
    ]
    return table(("target", "req/s that hold", "req/s that don't", "why not"), rows)


def ladder(low_Hz: float, high_Hz: float, step: float) -> list[float]:
    """Rates from the lowest up, each `step` times the one before, rounded to whole tens."""
    rates = [low_Hz]
    while rates[-1] * step <= high_Hz:
        rates.append(max(rates[-1] + 10, round(rates[-1] * step / 10) * 10))
    return rates


def search(target: str, rates: Sequence[float], trouble: Callable[[float], str]) -> Peak:
    """The highest of the rising `rates` without trouble, by bisection: what holds at one is taken to hold below it."""
    low, high = -1, len(rates)
    why = ""
    while high - low > 1:
        middle = (low + high) // 2
        found = trouble(rates[middle])
        if found:
            high, why = middle, found
        else:
            low = middle
    return Peak(target, rates[low] if low >= 0 else None, rates[high] if high < len(rates) else None, why)
