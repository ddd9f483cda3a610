"""Sizes and bandwidths as nccl-tests defines them, and the statistics of one row. Pure.

`size` is the number of bytes of the whole vector: of the result in an all-gather, of the input in a
reduce-scatter, of the one vector otherwise. `count` is what nccl-tests prints: elements per rank in those two,
elements of the vector otherwise. algbw = size / time. busbw = algbw times the factor below, which makes the figure
of an ideal ring independent of the number of ranks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from headway.collectives.plan import Collective
from headway.errors import UsageError


def count_of(collective: Collective, size_bytes: int, element_bytes: int, ranks: int) -> int:
    """Elements as nccl-tests counts them, rounded down so that every rank has the same number."""
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return size_bytes // (element_bytes * ranks)
    return size_bytes // element_bytes


def size_of(collective: Collective, count: int, element_bytes: int, ranks: int) -> int:
    """Bytes of the whole vector of `count` elements: the inverse of `count_of`."""
    per_rank = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    return count * element_bytes * (ranks if per_rank else 1)


def bus_factor(collective: Collective, ranks: int) -> float:
    """busbw / algbw: 2(n-1)/n for an all-reduce, (n-1)/n for its halves, 1 for one root."""
    if collective is Collective.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return (ranks - 1) / ranks
    return 1.0


def sizes(
    first_bytes: int, last_bytes: int, *, factor: float | None = None, step_bytes: int | None = None
) -> list[int]:
    """The sizes from `-b` to `-e`, by `-f` factor or by `-i` bytes; both ends included where they are hit.

    UsageError for an empty or an endless range.
    """
    if first_bytes < 0 or last_bytes < first_bytes:
        raise UsageError(
            f"the last size ({last_bytes} B) is below the first ({first_bytes} B)", where="-e", hint="-b 1MiB -e 64MiB"
        )
    if factor is not None and step_bytes is not None:
        raise UsageError("-f and -i exclude each other", hint="-f 2 doubles, -i 1MiB adds")
    if factor is not None and not factor > 1:
        raise UsageError(f"{factor:g} does not make sizes grow", where="-f", hint="-f 2 doubles")
    if step_bytes is not None and step_bytes <= 0:
        raise UsageError(f"{step_bytes} B does not make sizes grow", where="-i", hint="-i 1MiB adds 1 MiB")
    found = [first_bytes]
    while True:
        if step_bytes is not None:
            following = found[-1] + step_bytes
        else:
            following = max(found[-1] + 1, math.floor(found[-1] * (factor or 2)))
        if following > last_bytes:
            return found
        found.append(following)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of `values` do not exceed (nearest rank, so always one that was measured)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def variation_percent(values: Sequence[float]) -> float:
    """Standard deviation over mean, in percent; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = statistics.fmean(values)
    return 100 * statistics.stdev(values) / mean if mean > 0 else 0.0
