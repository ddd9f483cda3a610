"""The summaries of one epoch laid out as arrays: flows between hosts, and totals of each host's up- and downlink."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headway.cluster.model import Cluster, LinkKind
from headway.observe.summary import RankSummary

Array = npt.NDArray[np.float64]

EVIDENCE_SHARE = 0.25
"""A bin counts as evidence of what a link carries when its flows were network-limited for this part of it (1).
Ours: below it, the round trip after the last byte is a large part of the time."""

EVIDENCE_BYTES = 128 * 1024
"""Least bytes in an epoch that say anything about a link. Ours: twice the 64 KB that a token bucket passes at once."""


PAIR_BYTES = 64 * 1024
"""Pairs with less traffic in an epoch are left out: their round-trip times are old, and they wait for nothing."""


@dataclass(frozen=True, slots=True)
class LinkKey:
    """One direction of one host, or an ordered pair of hosts."""

    kind: LinkKind
    host: int
    peer: int | None = None


@dataclass(frozen=True)
class EpochView:
    """One epoch, per pair of hosts (F pairs), host (H) and bin (B).

    Attributes:
        bin_s: (B,) length of the bins, seconds.
        pairs: the F (source host, destination host) pairs with traffic.
        rate_Bps: (F, B) bytes acknowledged per second of each bin.
        limited: (F, B) network-limited share of each bin, 0 to 1.
        lost: (F,) segments sent again; 0 where unknown.
        queue_s: (F,) median round trip less the least one, nan where unknown.
        up_Bps, down_Bps: (H, B) totals out of and into each host.
        samples: (F,) how many samples stand behind each pair.
    """

    bin_s: Array
    pairs: tuple[tuple[int, int], ...]
    rate_Bps: Array
    limited: Array
    lost: Array
    queue_s: Array
    up_Bps: Array
    down_Bps: Array
    samples: tuple[int, ...]

    @property
    def span_s(self) -> float:
        """Time spent in operations, seconds."""
        return float(self.bin_s.sum())

    def flows_of(self, link: LinkKey) -> list[int]:
        """Indices of the pairs whose traffic uses `link`."""
        return self._by_link.get(link, [])

    @cached_property
    def _by_link(self) -> dict[LinkKey, list[int]]:
        found: dict[LinkKey, list[int]] = defaultdict(list)
        for index, (src, dst) in enumerate(self.pairs):
            found[LinkKey(LinkKind.UPLINK, src)].append(index)
            found[LinkKey(LinkKind.DOWNLINK, dst)].append(index)
            found[LinkKey(LinkKind.PATH, src, dst)].append(index)
        return dict(found)

    def total_Bps(self, link: LinkKey) -> Array:
        """(B,) what the job put through `link`."""
        if link.kind is LinkKind.UPLINK:
            return np.asarray(self.up_Bps[link.host])
        if link.kind is LinkKind.DOWNLINK:
            return np.asarray(self.down_Bps[link.host])
        return np.asarray(self.rate_Bps[self.flows_of(link)].sum(axis=0))

    def shown_Bps(self, link: LinkKey, *, without: int | None = None, overlapping: bool = False) -> float | None:
        """What `link` was seen to carry: a lower bound of its capacity, or None without evidence.

        Per bin, total / min(1, sum of the flows' limited shares), which cannot exceed the capacity but for noise;
        of that the upper quartile, so that a pause does not lower it and one odd bin does not raise it. When the
        flows of a link wait together, the bound is loose; `overlapping` divides by the largest share instead of the
        sum, which is right when they all wait at the same time, and too high when they take turns.

        Args:
            link: a host's uplink or downlink.
            without: leave out the bins in which this pair carries half of the traffic or more.
            overlapping: an estimate that may be too high, instead of the bound.
        """
        flows = self.flows_of(link)
        if not flows:
            return None
        total = self.total_Bps(link)
        shares = self.limited[flows]
        share = shares.max(axis=0) if overlapping else np.minimum(1.0, shares.sum(axis=0))
        counts = share >= EVIDENCE_SHARE
        if without is not None:
            counts &= self.rate_Bps[without] < 0.5 * total
        if not counts.any() or float((total * self.bin_s)[counts].sum()) < EVIDENCE_BYTES:
            return None
        return float(np.quantile(total[counts] / share[counts], 0.75))

    def demand(self, link: LinkKey) -> float:
        """Share of the epoch in which at least the busiest flow of `link` was network-limited, 0 to 1."""
        flows = self.flows_of(link)
        if not flows or self.span_s <= 0:
            return 0.0
        return float((self.limited[flows].max(axis=0) * self.bin_s).sum() / self.span_s)

    def pressure(self, link: LinkKey) -> float:
        """Mean share of the epoch that the flows of `link` were network-limited, 0 to 1: all of them wait for it."""
        flows = self.flows_of(link)
        if not flows or self.span_s <= 0:
            return 0.0
        return float((self.limited[flows].mean(axis=0) * self.bin_s).sum() / self.span_s)

    def losses(self, link: LinkKey, *, without: int | None = None) -> float:
        """Segments of this link's flows that were sent again, of all pairs but `without`."""
        return float(sum(self.lost[index] for index in self.flows_of(link) if index != without))

    def typical_queue_s(self, link: LinkKey) -> float | None:
        """Median queueing of the link's flows; None where unknown."""
        known = [self.queue_s[index] for index in self.flows_of(link) if not np.isnan(self.queue_s[index])]
        return float(np.median(known)) if known else None

    def queue_excess_s(self, link: LinkKey) -> float | None:
        """How much more queueing the flows of a host's link see than other flows that share their other end.

        A downlink's flows are compared with flows out of the same senders to other hosts, so that the senders' own
        queues cancel. None where there is nothing to compare.
        """
        other_end = 0 if link.kind is LinkKind.DOWNLINK else 1
        excesses = []
        for index in self.flows_of(link):
            siblings = [
                self.queue_s[other]
                for other, pair in enumerate(self.pairs)
                if other != index and pair[other_end] == self.pairs[index][other_end]
            ]
            known = [value for value in siblings if not np.isnan(value)]
            if known and not np.isnan(self.queue_s[index]):
                excesses.append(float(self.queue_s[index] - np.median(known)))
        return float(np.median(excesses)) if excesses else None


def view_epoch(cluster: Cluster, summaries: Sequence[RankSummary]) -> EpochView | None:
    """Lay out the summaries of one epoch; None when they hold no traffic between hosts.

    Summaries whose number of bins differs from the most common one are left out: their ranks counted other
    operations, and bins of different operations cannot be added.
    """
    counts = Counter(len(summary.bin_s) for summary in summaries if summary.bin_s)
    if not counts:
        return None
    bins = counts.most_common(1)[0][0]
    used = [summary for summary in summaries if len(summary.bin_s) == bins]
    bin_s = np.median(np.array([summary.bin_s for summary in used]), axis=0)
    sent: dict[tuple[int, int], Array] = {}
    limited: dict[tuple[int, int], Array] = {}
    queues: dict[tuple[int, int], list[float]] = {}
    samples: Counter[tuple[int, int]] = Counter()
    lost: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for summary in used:
        own_bin_s = np.array(summary.bin_s)
        for flow in summary.flows:
            pair = (cluster.host_of[flow.src], cluster.host_of[flow.dst])
            if pair[0] == pair[1]:
                continue
            rate = np.divide(flow.bytes_by_bin, own_bin_s, out=np.zeros(bins), where=own_bin_s > 0)
            sent[pair] = sent.get(pair, np.zeros(bins)) + rate
            limited[pair] = np.maximum(limited.get(pair, np.zeros(bins)), flow.limited_by_bin)
            samples[pair] += flow.samples
            lost[pair] += flow.retransmits or 0
            sizes[pair] += flow.acked_bytes
            if flow.rtt_s is not None and flow.min_rtt_s is not None:
                queues.setdefault(pair, []).append(max(0.0, flow.rtt_s - flow.min_rtt_s))
    pairs = tuple(pair for pair in sorted(sent) if sizes[pair] >= PAIR_BYTES)
    if not pairs:
        return None
    rate_Bps = np.array([sent[pair] for pair in pairs])
    up_Bps = np.zeros((len(cluster.hosts), bins))
    down_Bps = np.zeros((len(cluster.hosts), bins))
    for index, (src, dst) in enumerate(pairs):
        up_Bps[src] += rate_Bps[index]
        down_Bps[dst] += rate_Bps[index]
    return EpochView(
        bin_s=bin_s,
        pairs=pairs,
        rate_Bps=rate_Bps,
        limited=np.array([limited[pair] for pair in pairs]),
        lost=np.array([float(lost[pair]) for pair in pairs]),
        queue_s=np.array([np.median(queues[pair]) if pair in queues else np.nan for pair in pairs]),
        up_Bps=up_Bps,
        down_Bps=down_Bps,
        samples=tuple(samples[pair] for pair in pairs),
    )
