"""Who is blamed, on made-up flows of real plans."""

from __future__ import annotations

import pytest

from headway.cluster.model import LinkKind, star
from headway.collectives import families
from headway.collectives.plan import Collective, Plan
from headway.observe.detector import Detector
from headway.observe.findings import Finding, Pattern
from headway.observe.summary import FlowSummary, RankSummary, summarise
from tests.fakes.network import FakeNetwork, Load, flows_of

HOSTS = 8
SIZE_BYTES = 8_000_000
CLUSTER = star(HOSTS, 25e6)
RING = families.ring(range(HOSTS))
DIRECT = families.direct([1.0] * HOSTS)
CHAINS = families.chains([0, 1, 2, 4, 5, 6, 7], last=[3])


class Watched:
    """A plan that runs on a network under a detector, one operation an epoch."""

    def __init__(
        self,
        load: Load,
        *,
        seed: int = 0,
        trust_nominal: bool = False,
        collective: Collective = Collective.ALL_REDUCE,
    ) -> None:
        self.collective = collective
        self.network = FakeNetwork(CLUSTER, load, seed=seed)
        self.detector = Detector(CLUSTER, trust_nominal=trust_nominal)
        self.now_s = 0.0
        self.number = 0

    def epochs(self, plan: Plan, count: int, *, idle_plan: bool = True) -> list[list[Finding]]:
        """Findings after each of `count` operations."""
        found = []
        for _ in range(count):
            span, samples = self.network.run(plan, self.collective, SIZE_BYTES, number=self.number, start_s=self.now_s)
            self.now_s, self.number = span.end_s, self.number + 1
            summaries: list[RankSummary] = [
                summarise(rank, [sample for sample in samples if sample.src == rank], [span])
                for rank in range(plan.size)
            ]
            found.append(self.detector.update(self.now_s, summaries, idle_plan=idle_plan))
        return found


def named(findings: list[Finding]) -> set[tuple[LinkKind, int, int | None]]:
    return {(finding.kind, finding.host, finding.peer) for finding in findings}


@pytest.mark.parametrize("plan", [RING, DIRECT], ids=["ring", "direct"])
@pytest.mark.parametrize("seed", range(3))
def test_a_free_network_has_no_findings(plan: Plan, seed: int) -> None:
    watched = Watched(lambda now_s: {}, seed=seed)
    watched.network.noise = 0.08
    watched.network.pause_share = 0.05
    assert not any(watched.epochs(plan, 60))


@pytest.mark.parametrize("plan", [RING, DIRECT], ids=["ring", "direct"])
@pytest.mark.parametrize("kind", [LinkKind.UPLINK, LinkKind.DOWNLINK])
@pytest.mark.parametrize("victim", [0, 3, 7])
@pytest.mark.parametrize("left", [0.3, 0.5, 0.65])
def test_the_congested_link_is_found_in_two_epochs(plan: Plan, kind: LinkKind, victim: int, left: float) -> None:
    link = victim if kind is LinkKind.UPLINK else HOSTS + victim
    watched = Watched(lambda now_s: {link: left} if now_s > 6 else {}, seed=victim)
    while watched.now_s < 5:
        assert watched.epochs(plan, 1) == [[]]
    watched.epochs(plan, 1)
    findings = watched.epochs(plan, 3)[-1]
    assert named(findings) == {(kind, victim, None)}
    assert findings[0].pattern is Pattern.STEADY
    assert findings[0].certain
    assert findings[0].ratio == pytest.approx(left, rel=0.15)


@pytest.mark.parametrize("knows_rtt", [False, True])
def test_a_ring_with_one_flow_a_host_tells_the_two_ends_apart_by_round_trips_alone(knows_rtt: bool) -> None:
    load: Load = lambda now_s: {HOSTS + 3: 0.5} if now_s > 3 else {}  # noqa: E731
    watched = Watched(load, collective=Collective.REDUCE_SCATTER)
    watched.network.knows_rtt = knows_rtt
    while watched.now_s < 3:
        watched.epochs(RING, 1)
    findings = watched.epochs(RING, 4)[-1]
    sender = next(src for src, dst in flows_of(RING, Collective.REDUCE_SCATTER) if dst == 3)
    right, other = (LinkKind.DOWNLINK, 3, None), (LinkKind.UPLINK, sender, None)
    assert named(findings) == ({right} if knows_rtt else {right, other})
    assert all(finding.certain is knows_rtt for finding in findings)
    assert all(finding.ratio == pytest.approx(0.5, rel=0.15) for finding in findings)


def test_losses_tell_the_directions_of_one_host_apart() -> None:
    """A full downlink delays the acknowledgements of what its host sends: that goes slowly, too, but loses nothing."""
    detector = Detector(CLUSTER)

    def summaries(rate: float, lost: int) -> list[RankSummary]:
        """A ring in both directions; what leaves host 3 is slow and limited, what comes to it loses segments."""
        found = []
        for src in range(HOSTS):
            flows = []
            for dst in ((src + 1) % HOSTS, (src - 1) % HOSTS):
                sent = 12.5e6 * 0.1 * rate
                share = 0.9 if rate == 1 or src == 3 else 0.5
                flows.append(
                    FlowSummary(
                        src,
                        dst,
                        round(8 * sent),
                        0.8 * share,
                        8,
                        lost if dst == 3 else 0,
                        None,
                        None,
                        (sent,) * 8,
                        (share,) * 8,
                    )
                )
            found.append(RankSummary(src, (0.1,) * 8, tuple(flows)))
        return found

    for epoch in range(5):
        assert detector.update(epoch, summaries(1.0, 0)) == []
    assert named(detector.update(5.0, summaries(0.5, 0))) == {(LinkKind.UPLINK, 3, None)}
    for epoch in range(6, 12):
        assert detector.update(epoch, summaries(1.0, 0)) == [] or epoch < 7
    assert named(detector.update(12.0, summaries(0.5, 30))) == {(LinkKind.DOWNLINK, 3, None)}


def test_two_congested_hosts_are_both_found() -> None:
    watched = Watched(lambda now_s: {1: 0.5, HOSTS + 5: 0.5} if now_s > 6 else {})
    while watched.now_s < 6:
        watched.epochs(DIRECT, 1)
    assert named(watched.epochs(DIRECT, 3)[-1]) == {(LinkKind.UPLINK, 1, None), (LinkKind.DOWNLINK, 5, None)}


def test_a_job_that_starts_under_congestion_finds_it() -> None:
    for trust_nominal in (False, True):
        watched = Watched(lambda now_s: {HOSTS + 3: 0.5}, trust_nominal=trust_nominal)
        assert named(watched.epochs(RING, 3)[-1]) == {(LinkKind.DOWNLINK, 3, None)}


def test_the_end_of_congestion_ends_the_finding() -> None:
    watched = Watched(lambda now_s: {HOSTS + 3: 0.5} if 6 < now_s < 12 else {})
    while watched.now_s < 12:
        watched.epochs(RING, 1)
    assert watched.epochs(RING, 3)[-1] == []


def test_the_end_of_congestion_is_seen_under_a_plan_that_spares_the_link() -> None:
    watched = Watched(lambda now_s: {HOSTS + 3: 0.5} if 6 < now_s < 20 else {})
    while watched.now_s < 9:
        watched.epochs(RING, 1)
    for findings in watched.epochs(CHAINS, 8, idle_plan=False):
        assert named(findings) == {(LinkKind.DOWNLINK, 3, None)}
    while watched.now_s < 20.5:
        watched.epochs(CHAINS, 1, idle_plan=False)
    assert watched.epochs(CHAINS, 2, idle_plan=False)[-1] == []


def test_load_that_comes_and_goes_is_intermittent() -> None:
    watched = Watched(lambda now_s: {HOSTS + 3: 0.4} if now_s > 6 and now_s % 2.5 < 0.7 else {})
    while watched.now_s < 6:
        watched.epochs(RING, 1)
    found = [finding for findings in watched.epochs(RING, 24) for finding in findings]
    assert found
    assert {finding.pattern for finding in found} == {Pattern.INTERMITTENT}


def test_a_slow_path_is_named_when_both_ends_are_shown_to_be_free() -> None:
    detector = Detector(CLUSTER)

    def summaries(slow: float) -> list[RankSummary]:
        """Everyone sends to everyone; the flow from 2 to 3 goes on alone for half of the epoch when `slow`."""
        found = []
        for src in range(HOSTS):
            flows = []
            for dst in range(HOSTS):
                if src == dst:
                    continue
                late = slow if (src, dst) == (2, 3) else 0.0
                sent = (25e6 * 0.1 / 7,) * 4 + (25e6 * 0.1 * late,) * 4
                limited = (1.0,) * 4 + (1.0 if late else 0.0,) * 4
                flows.append(
                    FlowSummary(src, dst, round(sum(sent)), 0.1 * sum(limited), 8, 0, 0.002, 0.001, sent, limited)
                )
            found.append(RankSummary(src, (0.1,) * 8, tuple(flows)))
        return found

    for epoch in range(5):
        assert detector.update(epoch, summaries(0.0)) == []
    assert detector.update(5.0, summaries(0.1)) == []
    assert detector.update(6.0, summaries(0.1)) == []
    findings = detector.update(7.0, summaries(0.1))
    assert named(findings) == {(LinkKind.PATH, 2, 3)}
    assert findings[0].capacity_Bps == pytest.approx(2.5e6)


def test_the_detector_is_deterministic() -> None:
    def run() -> list[list[Finding]]:
        return Watched(lambda now_s: {3: 0.5} if now_s % 9 > 5 else {}, seed=4).epochs(RING, 20)

    assert run() == run()


def test_an_epoch_without_traffic_says_nothing() -> None:
    detector = Detector(CLUSTER)
    assert detector.update(1.0, []) == []
    assert detector.update(2.0, [RankSummary(rank, (), ()) for rank in range(HOSTS)]) == []
    assert detector.update(3.0, [RankSummary(rank, (0.1,), ()) for rank in range(HOSTS)]) == []


def test_a_link_that_carries_nothing_any_more_is_forgotten() -> None:
    watched = Watched(lambda now_s: {HOSTS + 3: 0.5})
    assert watched.epochs(RING, 3)[-1]
    now_s = watched.now_s
    assert watched.detector.update(now_s + 5, [])
    assert watched.detector.update(now_s + 60, []) == []


def test_an_epoch_shorter_than_a_few_readings_says_nothing() -> None:
    watched = Watched(lambda now_s: {HOSTS + 3: 0.3} if now_s > 3 else {})
    assert not any(watched.epochs(RING, 3))
    watched.now_s = 4.0
    span, samples = watched.network.run(RING, Collective.ALL_REDUCE, 300_000, number=9, start_s=4.0)
    assert span.end_s - span.start_s < 0.1
    summaries = [summarise(rank, [each for each in samples if each.src == rank], [span]) for rank in range(HOSTS)]
    assert watched.detector.update(4.1, summaries) == []
