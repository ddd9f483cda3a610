"""What the tuner computes from the measures of an epoch. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import replace

from headway.cluster.model import LinkKind
from headway.collectives.agreement import LARGE_BYTES
from headway.collectives.plan import Collective
from headway.collectives.verdict import OperationTime
from headway.observe.findings import Finding

TUNED = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
"""What gets tuned. Broadcast and reduce have one root that the caller chose; they are rare in training."""


def worth_tuning(operations: Sequence[OperationTime]) -> list[OperationTime]:
    """The large operations of the collectives that get tuned."""
    return [op for op in operations if op.size_bytes >= LARGE_BYTES and op.collective in TUNED]


def main_collective(operations: Sequence[OperationTime]) -> Collective:
    """The collective that takes the most time in all."""
    spent_s: dict[Collective, float] = defaultdict(float)
    for op in operations:
        spent_s[op.collective] += op.duration_s
    return max(TUNED, key=lambda collective: spent_s[collective])


def link_key(finding: Finding) -> Hashable:
    """Which link a finding is about."""
    return (finding.kind, finding.host, finding.peer)


def bucket_time(op: OperationTime) -> tuple[Hashable, float]:
    """What an operation's time is compared with, and the time.

    Operations of one collective within a factor of two in size are compared, each scaled to the bucket's upper size,
    so that an operation weighs by the time that it takes and not by its time per byte.
    """
    bits = op.size_bytes.bit_length()
    return (op.collective, bits), op.duration_s * 2**bits / op.size_bytes


def times_by_key(operations: Sequence[OperationTime] | deque[OperationTime]) -> dict[Hashable, list[float]]:
    """Seconds of the operations, by bucket."""
    times: dict[Hashable, list[float]] = defaultdict(list)
    for op in operations:
        key, seconds = bucket_time(op)
        times[key].append(seconds)
    return times


def typical_time(operations: Sequence[OperationTime] | deque[OperationTime]) -> float:
    """Median seconds of the operations of the size that takes the most time in all."""
    size = typical_size(operations)
    return statistics.median(op.duration_s for op in operations if op.size_bytes == size)


def typical_size(operations: Sequence[OperationTime] | deque[OperationTime]) -> int:
    """The size that takes the most time in all."""
    spent_s: dict[int, float] = defaultdict(float)
    for op in operations:
        spent_s[op.size_bytes] += op.duration_s
    return max(spent_s, key=lambda size: (spent_s[size], size))


def epoch_weight(operation_s: float, aim_s: float) -> float:
    """As many operations as take `aim_s`, at least one, at most 512 (which bounds a report's size)."""
    return float(max(1, min(512, round(aim_s / max(operation_s, 1e-6)))))


def lead_operations(operation_s: float, round_trip_s: float) -> int:
    """Operations that hide a round trip to the deciding rank; none where it is below a tenth of an operation."""
    return 0 if operation_s >= 10 * round_trip_s else max(1, min(16, math.ceil(round_trip_s / max(operation_s, 1e-6))))


def hypotheses(findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """All findings together; then, for doubtful ones, each alone with the sure ones, and the path between two."""
    sure = tuple(finding for finding in findings if finding.certain)
    doubtful = [finding for finding in findings if not finding.certain]
    ways = [tuple(findings)]
    if len(doubtful) < 2:
        return ways
    ways += [(*sure, finding) for finding in doubtful]
    ups = [finding for finding in doubtful if finding.kind is LinkKind.UPLINK]
    downs = [finding for finding in doubtful if finding.kind is LinkKind.DOWNLINK]
    if len(ups) == len(downs) == 1 and ups[0].host != downs[0].host:
        path = replace(ups[0], kind=LinkKind.PATH, peer=downs[0].host)
        ways.append((*sure, path))
    return ways


def doubtful_pairs(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    """Pairs of hosts between which a slow path would explain two findings of which either may be wrong."""
    doubtful = [each for each in findings if each.current and not each.certain]
    ups = [each.host for each in doubtful if each.kind is LinkKind.UPLINK]
    downs = [each.host for each in doubtful if each.kind is LinkKind.DOWNLINK]
    return [(up, down) for up in ups for down in downs if up != down]
