"""What a load looks like to a prefix cache. Pure.

A block is a hit if an earlier request's prompt began with the same blocks up to and with this one (and, in a cache of
limited size, none of them has been thrown out since). The hit share is hit tokens over input tokens of all requests.
The reuse distance of a hit block is the number of requests since the last prompt with that beginning (1: the request
before this one).
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
        reuse_distance: mean over all hit blocks, in requests; 0 where there are none.
        blocks: different blocks, told apart by their beginnings.
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
    prefixes = _Prefixes()
    last: dict[int, int] = {}
    distance_sum = distances = 0
    depths: list[int] = []
    hits: list[int] = []
    for number, arrival in enumerate(arrivals):
        nodes = prefixes.of(arrival)
        befores = [last[node] for node in nodes if node in last]  # a prefix was seen with all prefixes of its own
        distance_sum += sum(number - before for before in befores)
        distances += len(befores)
        last.update(dict.fromkeys(nodes, number))
        depths.append(len(befores))
        hits.append(min(len(befores) * arrival.block_tokens, arrival.input_tokens))
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
    prefixes = _Prefixes()
    cache: OrderedDict[int, None] = OrderedDict()
    hit = total = 0
    for arrival in arrivals:
        nodes = prefixes.of(arrival)
        depth = next((depth for depth, node in enumerate(nodes) if node not in cache), len(nodes))
        hit += min(depth * arrival.block_tokens, arrival.input_tokens)
        total += arrival.input_tokens
        for node in reversed(nodes):  # the end of a prompt goes before its start, as in vLLM
            cache[node] = None
            cache.move_to_end(node)
        while len(cache) > cache_tokens // arrival.block_tokens:
            cache.popitem(last=False)
    return hit / total if total else 0.0


class _Prefixes:
    """Numbers for the beginnings of prompts: one per block, of all the prompt up to that block's end."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def of(self, arrival: Arrival) -> list[int]:
        """The beginnings of a prompt, shortest first."""
        node, nodes = -1, []
        for block in arrival.block_ids:
            node = self._numbers.setdefault((node, block), len(self._numbers))
            nodes.append(node)
        return nodes


def _quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(values, LEVELS))
