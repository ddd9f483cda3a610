"""Summaries of an epoch into findings: who lost how much capacity, steady or intermittent.

The classes are REACT's: congestion that holds for some epochs in a row at about the same strength is steady; what is
strong or erratic but does not last is intermittent, and asks for more epochs before anything is done about it.

Under a plan that already spares a congested link, that link's flows no longer hold the operation back, so they are no
longer slow in the sense of `blame`. A known finding is therefore kept by weaker evidence: the link is still in
demand, has not shown its free rate, and still has a queue that other flows of the same hosts do not see. Where round
trips are unknown, the finding ends, and the tuner's trial of the idle plan finds out.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.cluster.model import Cluster, LinkKind
from headway.observe.baseline import Baseline
from headway.observe.blame import Suspect, blame, slow_flows
from headway.observe.findings import Finding, Pattern
from headway.observe.summary import RankSummary
from headway.observe.thresholds import Thresholds
from headway.observe.view import EpochView, LinkKey, view_epoch


@dataclass
class _Track:
    """What is remembered of one suspected link."""

    since_s: float
    seen_s: float
    slow: deque[bool]
    capacities_Bps: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    run_s: float = 0.0
    steady: bool = False
    certain: bool = False
    samples: int = 0
    queue_s: float | None = None

    @property
    def run(self) -> int:
        """How many of the latest epochs in a row were slow."""
        return next((k for k, slow in enumerate(reversed(self.slow)) if not slow), len(self.slow))

    @property
    def clear_run(self) -> int:
        """How many of the latest epochs in a row were not slow."""
        return next((k for k, slow in enumerate(reversed(self.slow)) if slow), len(self.slow))


class Detector:
    """Follows the links of one cluster from epoch to epoch. Deterministic: the same epochs give the same findings.

    Args:
        cluster: hosts with their nominal rates.
        thresholds: when slow is congested.
        trust_nominal: whether the nominal rates are the true ones; see `Baseline`.
    """

    def __init__(self, cluster: Cluster, thresholds: Thresholds | None = None, *, trust_nominal: bool = True) -> None:
        self._cluster = cluster
        self._thresholds = thresholds or Thresholds()
        self._baseline = Baseline(trust_nominal=trust_nominal)
        self._tracks: dict[LinkKey, _Track] = {}
        self._peers: float | None = None

    def update(self, now_s: float, summaries: Sequence[RankSummary], *, idle_plan: bool = True) -> list[Finding]:
        """Take in one epoch; returns what is congested now, worst first.

        Args:
            now_s: the end of the epoch on the deciding rank's clock.
            summaries: of all ranks that sent one.
            idle_plan: whether the idle plan was in force. Baselines are learned under it alone: a plan that spares a
                link never shows what that link could carry.
        """
        view = view_epoch(self._cluster, summaries)
        if view is None or view.span_s < self._thresholds.least_span_s:
            self._drop_stale(now_s)
            return self._findings()
        overlapping = self._factors(view, overlapping=True)
        self._peers = statistics.median(overlapping.values()) if len(overlapping) >= 3 else None
        slow = slow_flows(view, self._free_Bps, self._thresholds)
        known = {link for link, track in self._tracks.items() if track.certain}
        suspects = blame(view, slow, self._free_Bps, self._thresholds, known)
        self._follow(now_s, view, suspects)
        self._drop_stale(now_s)
        if idle_plan and not suspects and not self._tracks:
            self._baseline.learn(self._factors(view, overlapping=False))
        return self._findings()

    def usual_cluster(self) -> Cluster:
        """The cluster with the rates that its free links have been seen to carry, instead of the nominal ones."""
        hosts = tuple(
            replace(
                host,
                uplink_Bps=host.uplink_Bps * self._baseline.usual(LinkKey(LinkKind.UPLINK, index)),
                downlink_Bps=host.downlink_Bps * self._baseline.usual(LinkKey(LinkKind.DOWNLINK, index)),
            )
            for index, host in enumerate(self._cluster.hosts)
        )
        return replace(self._cluster, hosts=hosts)

    def _factors(self, view: EpochView, *, overlapping: bool) -> dict[Hashable, float]:
        """What each link carried, over its nominal rate."""
        factors: dict[Hashable, float] = {}
        for host in range(len(self._cluster.hosts)):
            for kind in (LinkKind.UPLINK, LinkKind.DOWNLINK):
                link = LinkKey(kind, host)
                rate = view.shown_Bps(link, overlapping=overlapping)
                if rate is not None:
                    factors[link] = rate / self._nominal_Bps(link)
        return factors

    def _nominal_Bps(self, link: LinkKey) -> float:
        host = self._cluster.hosts[link.host]
        if link.kind is LinkKind.UPLINK:
            return host.uplink_Bps
        if link.kind is LinkKind.DOWNLINK or link.peer is None:
            return host.downlink_Bps
        given = self._cluster.paths.get((link.host, link.peer), float("inf"))
        return min(given, host.uplink_Bps, self._cluster.hosts[link.peer].downlink_Bps)

    def _free_Bps(self, link: LinkKey) -> float | None:
        factor = self._baseline.factor(link, self._peers)
        return None if factor is None else factor * self._nominal_Bps(link)

    def _follow(self, now_s: float, view: EpochView, suspects: Sequence[Suspect]) -> None:
        limits = self._thresholds
        by_link = {suspect.link: suspect for suspect in suspects}
        if any(suspect.certain for suspect in suspects):
            self._forget_alternatives(by_link)
        for link, suspect in by_link.items():
            track = self._tracks.get(link)
            if track is None:
                track = _Track(now_s - view.span_s, now_s, deque(maxlen=limits.memory_epochs))
                self._tracks[link] = track
            if track.run == 0:
                track.run_s = 0.0
            track.slow.append(True)
            track.seen_s = now_s
            track.capacities_Bps.append(suspect.capacity_Bps)
            track.run_s += suspect.share * view.span_s
            track.certain = suspect.certain
            track.queue_s = view.typical_queue_s(link)
            track.samples += suspect.samples
        for link, track in list(self._tracks.items()):
            if link in by_link:
                continue
            still = self._still_slow(view, link, track)
            if still is None:
                continue
            track.seen_s = now_s
            track.slow.append(still)
            if still:
                track.run_s += view.span_s
            elif track.clear_run >= limits.clear_epochs and (track.steady or not self._recurs(track)):
                del self._tracks[link]

        for track in self._tracks.values():
            if (
                track.run >= limits.steady_epochs
                and track.run_s >= limits.steady_s
                and _variation(track.capacities_Bps) <= limits.steady_variation
            ):
                track.steady = True

    def _forget_alternatives(self, by_link: Mapping[LinkKey, Suspect]) -> None:
        """A sure suspect now ends the doubtful ones of before that nothing speaks for any more."""
        for link, track in list(self._tracks.items()):
            if link not in by_link and not track.certain:
                del self._tracks[link]

    def _recurs(self, track: _Track) -> bool:
        return sum(track.slow) >= 3 and track.clear_run <= self._thresholds.memory_epochs // 2

    def _still_slow(self, view: EpochView, link: LinkKey, track: _Track) -> bool | None:
        """Whether weaker evidence keeps a finding; None when the epoch says nothing about its link."""
        flows = view.flows_of(link)
        if not flows:
            return None
        free = self._free_Bps(link)
        carried = view.shown_Bps(link)
        if carried is None or free is None:
            return None
        if carried >= self._thresholds.slow_ratio * free or link.kind is LinkKind.PATH:
            return False
        excess_s, queue_s = view.queue_excess_s(link), view.typical_queue_s(link)
        if excess_s is None or queue_s is None or track.queue_s is None:
            return False
        if view.demand(link) < self._thresholds.limited_share:
            return False
        return (
            queue_s >= self._thresholds.still_share * track.queue_s
            and excess_s >= self._thresholds.queue_share * queue_s > 0
        )

    def _drop_stale(self, now_s: float) -> None:
        for link, track in list(self._tracks.items()):
            if now_s - track.seen_s > self._thresholds.stale_s:
                del self._tracks[link]

    def _findings(self) -> list[Finding]:
        findings = []
        for link, track in self._tracks.items():
            free = self._free_Bps(link)
            if free is None or (link.kind is LinkKind.PATH and sum(track.slow) < self._thresholds.path_epochs):
                continue
            findings.append(
                Finding(
                    kind=link.kind,
                    host=link.host,
                    peer=link.peer,
                    capacity_Bps=min(statistics.median(track.capacities_Bps), free),
                    baseline_Bps=free,
                    pattern=Pattern.STEADY if track.steady else Pattern.INTERMITTENT,
                    since_s=track.since_s,
                    samples=track.samples,
                    certain=track.certain,
                    current=bool(track.slow) and track.slow[-1],
                )
            )
        return sorted(findings, key=lambda finding: finding.ratio)


def _variation(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean > 0 else 0.0
