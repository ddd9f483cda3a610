"""What one rank tells the deciding rank of its outgoing flows at the end of an epoch: about 100 bytes a flow.

Rates alone do not show a shared link's capacity: seven flows that share an uplink each get a seventh of it. So the
summary keeps the shape of the epoch in time: every operation is cut into the same number of *bins* on every rank,
and each flow reports its bytes and its network-limited share per bin. Clocks of different hosts need not agree:
ranks enter an operation when they may, but they finish it together (the last hop apart), so bin k of operation m is
the same stretch of time everywhere, as long as an operation takes longer than the skew between its ends. Flows of
different ranks into one host can then be added up bin by bin.
"""

from __future__ import annotations

import base64
import binascii
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import HeadwayError
from headway.observe.samples import FlowSample

MAX_BINS = 16
"""Bins of one epoch (count). With epochs of 0.5 to 1.5 s a bin is 30 to 100 ms, which at 200 Mbit/s is 0.75 MB or
more: some ten times what a token bucket lets through in one burst (64 KB and up)."""

_LEVELS = 255


class SummaryError(HeadwayError):
    """A summary that arrived does not have the form of one."""


@dataclass(frozen=True, slots=True)
class OperationSpan:
    """When one operation began and ended on this rank (monotonic seconds)."""

    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """What the flow from rank `src` to rank `dst` did in one epoch, during its operations.

    Attributes:
        src: sending rank.
        dst: receiving rank.
        acked_bytes: bytes acknowledged.
        network_limited_s: time that only the network held it back.
        samples: how many samples stand behind it.
        retransmits: segments sent again; None where unknown.
        rtt_s: median of the smoothed round-trip times, seconds; None where unknown.
        min_rtt_s: least round-trip time seen; None where unknown.
        bytes_by_bin: acknowledged bytes in each bin.
        limited_by_bin: network-limited share of each bin, 0 to 1.
    """

    src: int
    dst: int
    acked_bytes: int
    network_limited_s: float
    samples: int
    retransmits: int | None
    rtt_s: float | None
    min_rtt_s: float | None
    bytes_by_bin: tuple[float, ...]
    limited_by_bin: tuple[float, ...]

    @property
    def rate_Bps(self) -> float | None:
        """Bytes acknowledged per network-limited second; None when there was no such time."""
        return self.acked_bytes / self.network_limited_s if self.network_limited_s > 0 else None


@dataclass(frozen=True, slots=True)
class RankSummary:
    """All outgoing flows of one rank in one epoch.

    Attributes:
        rank: whose.
        bin_s: length of each bin on this rank, seconds; the same number of bins on every rank.
        flows: one entry per flow that did something.
    """

    rank: int
    bin_s: tuple[float, ...]
    flows: tuple[FlowSummary, ...]

    def to_json(self) -> str:
        """A compact form for the control channel. Bins are rounded to 1/255 of the flow's largest."""
        flows = [
            [
                flow.src,
                flow.dst,
                flow.acked_bytes,
                round(flow.network_limited_s, 6),
                flow.samples,
                flow.retransmits,
                None if flow.rtt_s is None else round(flow.rtt_s * 1e6),
                None if flow.min_rtt_s is None else round(flow.min_rtt_s * 1e6),
                round(max(flow.bytes_by_bin, default=0.0)),
                _pack(flow.bytes_by_bin, max(flow.bytes_by_bin, default=0.0)),
                _pack(flow.limited_by_bin, 1.0),
            ]
            for flow in self.flows
        ]
        return json.dumps([self.rank, [round(length, 6) for length in self.bin_s], flows], separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> RankSummary:
        """The summary in `text`. SummaryError when it is not one."""
        try:
            rank, bins, rows = json.loads(text)
            bin_s = tuple(float(length) for length in bins)
            return RankSummary(int(rank), bin_s, tuple(_flow(row, len(bin_s)) for row in rows))
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            raise SummaryError(f"not a rank's summary: {error}") from None


def _flow(row: list[int | float | str | None], bins: int) -> FlowSummary:
    src, dst, acked, limited, samples, retransmits, rtt_us, min_rtt_us, peak, sent, share = row
    summary = FlowSummary(
        src=_int(src),
        dst=_int(dst),
        acked_bytes=_int(acked),
        network_limited_s=_float(limited),
        samples=_int(samples),
        retransmits=None if retransmits is None else _int(retransmits),
        rtt_s=None if rtt_us is None else _float(rtt_us) / 1e6,
        min_rtt_s=None if min_rtt_us is None else _float(min_rtt_us) / 1e6,
        bytes_by_bin=_unpack(sent, _float(peak)),
        limited_by_bin=_unpack(share, 1.0),
    )
    if not len(summary.bytes_by_bin) == len(summary.limited_by_bin) == bins:
        raise ValueError(f"flow {summary.src} to {summary.dst} does not have {bins} bins")
    return summary


def _int(value: int | float | str | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _float(value: int | float | str | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _pack(values: Sequence[float], full: float) -> str:
    levels = bytes(min(_LEVELS, round(value / full * _LEVELS)) if full > 0 else 0 for value in values)
    return base64.b64encode(levels).decode()


def _unpack(text: int | float | str | None, full: float) -> tuple[float, ...]:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} holds no bins")
    return tuple(level / _LEVELS * full for level in base64.b64decode(text, validate=True))


def summarise(rank: int, samples: Sequence[FlowSample], operations: Sequence[OperationSpan] = ()) -> RankSummary:
    """The samples of one epoch as a summary.

    Samples of operations that are not in `operations` are left out. Without `operations` their spans are taken from
    the samples themselves, which then count a pause before an operation as part of it.

    Args:
        rank: whose samples.
        samples: of this rank's outgoing flows, each with its operation's number.
        operations: the epoch's large operations with their times on this rank; the same numbers on every rank.
    """
    spans = sorted(operations or _spans_of(samples), key=lambda span: span.number)[-MAX_BINS:]
    per_operation = MAX_BINS // len(spans) if spans else 0
    first_bin = {span.number: index * per_operation for index, span in enumerate(spans)}
    by_number = {span.number: span for span in spans}
    lengths = [(span.end_s - span.start_s) / per_operation for span in spans for _ in range(per_operation)]
    by_peer: dict[tuple[int, int], list[FlowSample]] = defaultdict(list)
    for sample in samples:
        if sample.operation in by_number and sample.src != sample.dst:
            by_peer[sample.src, sample.dst].append(sample)
    flows = []
    for (src, dst), own in sorted(by_peer.items()):
        sent = [0.0] * len(lengths)
        limited = [0.0] * len(lengths)
        for sample in own:
            span = by_number[sample.operation]
            for offset, part in _parts(sample, span, per_operation):
                sent[first_bin[span.number] + offset] += part * sample.acked_bytes
                limited[first_bin[span.number] + offset] += part * sample.network_limited_s
        rtts = [sample.rtt_s for sample in own if sample.rtt_s is not None]
        least = [sample.min_rtt_s for sample in own if sample.min_rtt_s is not None]
        again = [sample.retransmits for sample in own if sample.retransmits is not None]
        flows.append(
            FlowSummary(
                src=src,
                dst=dst,
                acked_bytes=sum(sample.acked_bytes for sample in own),
                network_limited_s=sum(sample.network_limited_s for sample in own),
                samples=len(own),
                retransmits=sum(again) if again else None,
                rtt_s=statistics.median(rtts) if rtts else None,
                min_rtt_s=min(least) if least else None,
                bytes_by_bin=tuple(sent),
                limited_by_bin=tuple(
                    min(1.0, share / length) if length > 0 else 0.0
                    for share, length in zip(limited, lengths, strict=True)
                ),
            )
        )
    return RankSummary(rank=rank, bin_s=tuple(lengths), flows=tuple(flows))


def _spans_of(samples: Sequence[FlowSample]) -> list[OperationSpan]:
    by_number: dict[int, list[FlowSample]] = defaultdict(list)
    for sample in samples:
        if sample.operation >= 0:
            by_number[sample.operation].append(sample)
    spans: list[OperationSpan] = []
    before_s = float("-inf")
    for number in sorted(by_number):
        start_s = max(before_s, min(sample.start_s for sample in by_number[number]))
        end_s = max(sample.end_s for sample in by_number[number])
        spans.append(OperationSpan(number, min(start_s, end_s), end_s))
        before_s = end_s
    return spans


def _parts(sample: FlowSample, span: OperationSpan, bins: int) -> list[tuple[int, float]]:
    """Which bins of `span` the sample falls into, and with which fraction of it; fractions add up to 1."""
    length_s = (span.end_s - span.start_s) / bins
    start_s, end_s = max(sample.start_s, span.start_s), min(sample.end_s, span.end_s)
    if length_s <= 0 or end_s <= start_s:
        late = sample.start_s >= span.end_s
        return [(bins - 1 if late else 0, 1.0)]
    parts = []
    for index in range(bins):
        lower_s = span.start_s + index * length_s
        overlap_s = min(end_s, lower_s + length_s) - max(start_s, lower_s)
        if overlap_s > 0:
            parts.append((index, overlap_s / (end_s - start_s)))
    scale = sum(part for _, part in parts)
    return [(index, part / scale) for index, part in parts]
