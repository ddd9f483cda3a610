"""Which links explain that some flows of one epoch were slow.

A flow is *held back* in a bin when the network limited it for most of the bin while neither its host's uplink nor its
peer's downlink was full: a full link explains why a flow on it waits. A flow that is held back for a large part of the
epoch is *slow*, and some link on its way has lost capacity:

1. a host's uplink or downlink, where most of its flows (two or more) are slow: one cause explains them all;
2. else the end that no other traffic has shown to be free;
3. else, when both ends are shown to be free, the path between the two;
4. else (several ends are possible) the end that told apart by losses, by what was sure before, by pressure (all flows
   wait for a link that is the bottleneck), or, in a ring, where each flow is alone on both its ends, by the queue that
   delays the acknowledgements of *other* flows: those of flows into host a leave through a's uplink, those of flows
   out of b arrive through b's downlink;
5. else both ends, marked as uncertain. A plan that spares both costs little more than one that spares one, and
   shows the truth, because it has more flows.

The two directions of one host are easily confused: a full queue one way delays the acknowledgements of what goes the
other way, and a host that receives late sends late. But only the full queue drops data: a link is cleared when hardly
any segments were lost on it and many on its host's other direction, which then takes the blame.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from headway.cluster.model import LinkKind
from headway.observe.thresholds import Thresholds
from headway.observe.view import EpochView, LinkKey

CapacityOf = Callable[[LinkKey], float | None]
"""What a link carries when it is free, bytes per second; None while nothing is known of it."""


@dataclass(frozen=True, slots=True)
class SlowFlow:
    """One pair of hosts whose traffic was held back.

    Attributes:
        index: of the pair in the view.
        share: part of the epoch that it was held back, 0 to 1.
        held: (B,) the bins in which it was.
    """

    index: int
    share: float
    held: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A link that explains slow flows in one epoch.

    Attributes:
        link: which.
        capacity_Bps: what the job got of it while it held flows back.
        share: part of the epoch that it held flows back, 0 to 1.
        samples: flow samples behind it.
        certain: whether no other link explains the same flows.
        flows: the slow flows.
    """

    link: LinkKey
    capacity_Bps: float
    share: float
    samples: int
    certain: bool
    flows: tuple[SlowFlow, ...]


def slow_flows(view: EpochView, free_Bps: CapacityOf, thresholds: Thresholds) -> list[SlowFlow]:
    """The pairs that were held back for at least `slow_share` of the epoch.

    Of several, those that the network limited for clearly less time than the worst are left out: a flow that waits
    for data from a slow one looks slow itself for as long as its last bytes take a round trip.
    """
    if view.span_s <= 0:
        return []
    found: list[tuple[SlowFlow, float]] = []
    for index, (src, dst) in enumerate(view.pairs):
        up = free_Bps(LinkKey(LinkKind.UPLINK, src))
        down = free_Bps(LinkKey(LinkKind.DOWNLINK, dst))
        if up is None or down is None:
            continue
        limited = view.limited[index] >= thresholds.limited_share
        share = np.where(limited, view.limited[index], 1.0)
        full = np.maximum(view.up_Bps[src] / up, view.down_Bps[dst] / down) / share >= thresholds.slow_ratio
        held = limited & ~full
        part = float(view.bin_s[held].sum()) / view.span_s
        if part >= thresholds.slow_share:
            phi = float((view.limited[index] * view.bin_s).sum()) / view.span_s
            found.append((SlowFlow(index, part, tuple(bool(value) for value in held)), phi))
    worst = max((phi for _, phi in found), default=0.0)
    return [flow for flow, phi in found if phi >= thresholds.follower_share * worst]


def blame(
    view: EpochView,
    slow: Sequence[SlowFlow],
    free_Bps: CapacityOf,
    thresholds: Thresholds,
    known: Container[LinkKey] = (),
) -> list[Suspect]:
    """The links that explain the slow flows.

    Args:
        view: the epoch.
        slow: its slow flows.
        free_Bps: what links carry when they are free.
        thresholds: see there.
        known: links that were sure to be congested before.
    """
    suspects: list[Suspect] = []
    left = {flow.index: flow for flow in slow}
    while left:
        link = _shared_cause(view, left)
        if link is None:
            break
        covered = [left.pop(index) for index in view.flows_of(link) if index in left]
        suspects.append(_suspect(view, link, covered, certain=True))
    for flow in left.values():
        src, dst = view.pairs[flow.index]
        up, down = LinkKey(LinkKind.UPLINK, src), LinkKey(LinkKind.DOWNLINK, dst)
        links = [link for link in (up, down) if not _shown_free(view, link, flow.index, free_Bps, thresholds)]
        if not links:
            links = [LinkKey(LinkKind.PATH, src, dst)]
        elif len(links) == 2:
            told = _told_apart(view, flow.index, up, down, thresholds, known)
            links = [told] if told is not None else links
        suspects += [_suspect(view, link, [flow], certain=len(links) == 1) for link in links]
    return _one_direction(view, _merged(suspects), thresholds, known)


def _told_apart(
    view: EpochView, flow: int, up: LinkKey, down: LinkKey, thresholds: Thresholds, known: Container[LinkKey]
) -> LinkKey | None:
    """Which link near a slow flow is to blame; None when nothing tells."""
    near = [up, down, *(back for back in (_reverse(up), _reverse(down)) if back is not None)]
    losses = sorted(((view.losses(link, without=flow), index) for index, link in enumerate(near)), reverse=True)
    if losses[0][0] >= max(thresholds.losses_least, thresholds.losses_contrast * losses[1][0]):
        return near[losses[0][1]]
    if (up in known) != (down in known):
        return up if up in known else down
    pressed = _under_pressure(view, up, down, thresholds)
    return pressed if pressed is not None else _end_with_queue(view, flow, thresholds)


def _under_pressure(view: EpochView, first: LinkKey, second: LinkKey, thresholds: Thresholds) -> LinkKey | None:
    one, other = view.pressure(first), view.pressure(second)
    if one >= thresholds.pressure_contrast * other:
        return first
    return second if other >= thresholds.pressure_contrast * one else None


def _one_direction(
    view: EpochView, suspects: list[Suspect], thresholds: Thresholds, known: Container[LinkKey]
) -> list[Suspect]:
    """With the blame where the losses are, and without the direction of a host that only follows its other one."""
    placed = _merged([_where_losses_are(view, suspect, thresholds) for suspect in suspects])
    links = {suspect.link for suspect in placed}
    followers = set()
    for link in links:
        back = _reverse(link)
        if back is None:
            continue
        pressed = _under_pressure(view, link, back, thresholds)
        follows = pressed == back if back in links else False
        if follows or (back in known and link not in known and pressed != link):
            followers.add(link)
    return [suspect for suspect in placed if suspect.link not in followers]


def _where_losses_are(view: EpochView, suspect: Suspect, thresholds: Thresholds) -> Suspect:
    back = _reverse(suspect.link)
    if back is None:
        return suspect
    least = max(thresholds.losses_least, thresholds.losses_contrast * view.losses(suspect.link))
    if view.losses(back) < least:
        return suspect
    return _suspect(view, back, suspect.flows, certain=suspect.certain)


def _reverse(link: LinkKey) -> LinkKey | None:
    """The same host's other direction; None for a path."""
    if link.kind is LinkKind.PATH:
        return None
    return LinkKey(LinkKind.DOWNLINK if link.kind is LinkKind.UPLINK else LinkKind.UPLINK, link.host)


def _shared_cause(view: EpochView, left: dict[int, SlowFlow]) -> LinkKey | None:
    """The uplink or downlink most of whose flows are slow, covering the most of them; None when there is none."""
    best: LinkKey | None = None
    most = 1
    for index in left:
        src, dst = view.pairs[index]
        for link in (LinkKey(LinkKind.UPLINK, src), LinkKey(LinkKind.DOWNLINK, dst)):
            flows = view.flows_of(link)
            covered = sum(flow in left for flow in flows)
            if covered > most and covered >= 0.6 * len(flows):
                best, most = link, covered
    return best


def _shown_free(view: EpochView, link: LinkKey, flow: int, free_Bps: CapacityOf, thresholds: Thresholds) -> bool:
    capacity = free_Bps(link)
    shown = view.shown_Bps(link, without=flow)
    return shown is not None and capacity is not None and shown >= thresholds.slow_ratio * capacity


def _end_with_queue(view: EpochView, flow: int, thresholds: Thresholds) -> LinkKey | None:
    src, dst = view.pairs[flow]
    into_src = _typical([view.queue_s[k] for k, pair in enumerate(view.pairs) if pair[1] == src and k != flow])
    out_of_dst = _typical([view.queue_s[k] for k, pair in enumerate(view.pairs) if pair[0] == dst and k != flow])
    own = float(view.queue_s[flow])
    if into_src is None or out_of_dst is None or np.isnan(own):
        return None
    least_s = thresholds.queue_share * own
    if out_of_dst >= max(least_s, thresholds.queue_contrast * into_src):
        return LinkKey(LinkKind.DOWNLINK, dst)
    if into_src >= max(least_s, thresholds.queue_contrast * out_of_dst):
        return LinkKey(LinkKind.UPLINK, src)
    return None


def _typical(values: Sequence[float]) -> float | None:
    known = [value for value in values if not np.isnan(value)]
    return float(np.median(known)) if known else None


def _suspect(view: EpochView, link: LinkKey, flows: Sequence[SlowFlow], *, certain: bool) -> Suspect:
    held = np.logical_or.reduce(np.array([flow.held for flow in flows], dtype=np.bool_))
    limited = np.maximum(0.5, view.limited[view.flows_of(link)].max(axis=0, initial=0.0)[held])
    return Suspect(
        link=link,
        capacity_Bps=float(np.median(view.total_Bps(link)[held] / limited)),
        share=float(view.bin_s[held].sum()) / view.span_s,
        samples=sum(view.samples[flow.index] for flow in flows),
        certain=certain,
        flows=tuple(flows),
    )


def _merged(suspects: Sequence[Suspect]) -> list[Suspect]:
    """One entry per link: the surest, and of equals the one that held flows back the longest."""
    best: dict[LinkKey, Suspect] = {}
    for suspect in suspects:
        known = best.get(suspect.link)
        if known is None or (suspect.certain, suspect.share) > (known.certain, known.share):
            best[suspect.link] = suspect
    return list(best.values())
