"""What a load looks like to a prefix cache. Pure.

A block is a hit if it and all blocks before it in its prompt were in the prompt of an earlier request (and, in a cache
of limited size, have not been thrown out since). The hit share is hit tokens over input tokens of all requests. The
reuse distance of a block that occurs again is the number of requests since it last occurred (1: the request before).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headway.errors import UsageError
from headway.serving.workload.arrival import Arrival

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of a load with a cache that never forgets.

    Attributes:
        requests: how many.
        rate: requests per second between the first and the last; 0 where all come at once.
        mean_input_tokens, mean_output_tokens: per request.
        input_quantiles, output_quantiles, depth_quantiles: at `LEVELS`; the depth is the hit blocks of a request.
        hit_share: hit tokens over input tokens.
        mean_hit_share: mean over requests of each one's own share.
        returning_share: requests that hit more than one block, over all requests.
        reuse_distance: mean over all blocks that occurred before, in requests; 0 where none did.
        blocks: different blocks.
    """

    requests: int
    rate: float
    mean_input_tokens: float
    mean_output_tokens: float
    input_quantiles: tuple[float, ...]
    output_quantiles: tuple[float, ...]
    depth_quantiles: tuple[float, ...]
    hit_share: float
    mean_hit_share: float
    returning_share: float
    reuse_distance: float
    blocks: int


def measure(arrivals: Sequence[Arrival]) -> Statistics:
    """Statistics of a load, in its order. Linear in the number of blocks. UsageError for a load without requests."""
    if not arrivals:
        raise UsageError("a load without requests has no statistics")
    last: dict[int, int] = {}
    distance_sum = distances = 0
    depths: list[int] = []
    hits: list[int] = []
    for number, arrival in enumerate(arrivals):
        depth, unbroken = 0, True
        for block in arrival.block_ids:
            before = last.get(block)
            unbroken = unbroken and before is not None
            depth += unbroken
            if before is not None:
                distance_sum += number - before
                distances += 1
        for block in arrival.block_ids:
            last[block] = number
        depths.append(depth)
        hits.append(min(depth * arrival.block_tokens, arrival.input_tokens))
    inputs = np.array([each.input_tokens for each in arrivals], dtype=float)
    outputs = np.array([each.output_tokens for each in arrivals], dtype=float)
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    return Statistics(
        requests=len(arrivals),
        rate=(len(arrivals) - 1) / span_s if span_s > 0 else 0.0,
        mean_input_tokens=float(inputs.mean()),
        mean_output_tokens=float(outputs.mean()),
        input_quantiles=_quantiles(inputs),
        output_quantiles=_quantiles(outputs),
        depth_quantiles=_quantiles(np.array(depths, dtype=float)),
        hit_share=sum(hits) / float(inputs.sum()),
        mean_hit_share=float((np.array(hits) / inputs).mean()),
        returning_share=float((np.array(depths) > 1).mean()),
        reuse_distance=distance_sum / distances if distances else 0.0,
        blocks=len(last),
    )


def lru_hit_share(arrivals: Sequence[Arrival], *, cache_tokens: int) -> float:
    """Hit share with a cache of so many tokens that throws out the block that was unused for longest.

    One cache for all, prompts put in at once when they come: what one replica with that much memory could reach.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hit = total = 0
    for arrival in arrivals:
        most_blocks = cache_tokens // arrival.block_tokens
        depth = 0
        for block in arrival.block_ids:
            if block not in cache:
                break
            depth += 1
        hit += min(depth * arrival.block_tokens, arrival.input_tokens)
        total += arrival.input_tokens
        for block in reversed(arrival.block_ids):  # the end of a prompt goes before its start, as in vLLM
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > most_blocks:
            cache.popitem(last=False)
    return hit / total if total else 0.0


def _quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(values, LEVELS))
