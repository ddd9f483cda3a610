"""The numbers that the detector judges by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a flow is slow, and when slowness is congestion.

    "Ours" marks a value that no paper gives; `bench/detector.py` measures how well they do, on seeds other than those
    they were chosen on.

    Attributes:
        least_span_s: an epoch with less time in operations says nothing (s). Ours: flows are read every 40 ms, so a
            shorter one is a reading or two; small buckets of gradients between large ones looked congested.
        slow_ratio: below this part of a free link's rate a link is congested (1). On runs for choosing thresholds (8
            emulated hosts, a machine busy with other work), 0.65 to 0.75 raised no false alarm and one, 0.80 five;
            below 0.75 weaker loads were missed; the higher, the earlier a load is seen.
        limited_share: a bin counts when the network limited the flow for this part of it (1). Ours.
        slow_share: a flow is slow when it was held back for this part of an epoch (1). Ours: with stars at every
            rank, a downlink at half its rate holds flows back for the last 0.54 of an operation.
        follower_share: of slow flows, those limited for less than this part of the worst one's time only wait for
            it (1). Ours.
        pressure_contrast: how many times longer the flows of one link must be network-limited than those of another,
            for the one to be the bottleneck and the other to follow (1). On runs for choosing thresholds the
            congested direction of a host read 1.3 to 2.5 times the other.
        losses_least: fewest segments sent again that say where the full queue is (count). Ours.
        losses_contrast: how many times more there must be than in the host's other direction (1). On runs for choosing
            thresholds the loaded direction lost 40 to 580 segments an epoch and the other one none, or a third.
        queue_share: a queue on the way of other flows' acknowledgements counts from this part of the slow flow's
            own queueing (1). Ours.
        queue_contrast: how many times longer it must be than at the other end (1). Ours.
        still_share: a known finding is kept on while the queue is at least this part of what it was when it held flows
            back (1). Ours.
        steady_epochs: epochs in a row that make congestion steady (count). REACT asks for k epochs in a row without
            giving k; two is the least that is not one.
        steady_s: least time that it must have held flows back in those epochs (s). Ours: longer than a burst of load
            or a recovery from a loss.
        steady_variation: largest coefficient of variation of the capacity from epoch to epoch of a steady finding (1).
            REACT names such a limit without giving it.
        path_epochs: epochs after which a path is named (count). Ours: one flow that recovers from losses looks like
            a slow path for an epoch or two, and does so whenever congestion sets in.
        clear_epochs: epochs in a row without it that end a finding (count). Ours.
        memory_epochs: how many epochs intermittent congestion is remembered for (count). Ours.
        stale_s: a finding about a link that carries nothing is dropped after this time (s). Ours.
    """

    least_span_s: float = 0.1
    slow_ratio: float = 0.75
    limited_share: float = 0.6
    slow_share: float = 0.4
    follower_share: float = 0.85
    pressure_contrast: float = 1.2
    losses_least: float = 10
    losses_contrast: float = 3.0
    queue_share: float = 0.4
    queue_contrast: float = 2.0
    still_share: float = 0.8
    steady_epochs: int = 2
    steady_s: float = 0.8
    steady_variation: float = 0.35
    path_epochs: int = 3
    clear_epochs: int = 2
    memory_epochs: int = 8
    stale_s: float = 20.0
