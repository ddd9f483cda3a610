"""Loads in which a known share of each prompt is shared with other requests. Pure; the same seed, the same load.

After the generator of Lodestar's authors (arXiv 2606.00946, Apache-2.0). A class is a prompt length and a shared
proportion p; it has `PREFIXES` different prefixes and `REQUESTS_PER_PREFIX` requests with each. A request's length is
drawn from N(length, 5 %), its shared part from N(p, p/5) of that: the requests of one prefix share the beginning of it,
some more, some less. Rounds of all classes follow each other, each with new prefixes, until there are enough requests.
The first request with a prefix cannot hit, and a longer shared part than any before it hits what was there: a cache
that never forgets hits about 0.86 p of the tokens. A prefix is no conversation, so the requests name no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from headway.errors import UsageError
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import blocks_of

BLOCK_TOKENS = 16
"""vLLM's block."""
PROMPT_TOKENS = (1000, 2000, 4000, 8000)
PROMPT_DEVIATION = 0.05
PROPORTION_DEVIATION = 0.2  # of the proportion: 0.02 for 0.1
REQUESTS_PER_PREFIX = 10
PREFIXES = 25
OUTPUT_TOKENS = (100, 10)
REUSE_DISTANCE = (30, 10)
"""Mean and deviation, requests, where the order is not just shuffled."""
LEVELS = (0.1, 0.3, 0.5, 0.7)
SHIFT = (0.05, 0.5)
"""The published shift of load: 5 % sharing, from the middle on 50 %."""


def shared(
    times_s: Sequence[float],
    *,
    proportions: Sequence[float],
    seed: int,
    prompt_tokens: Sequence[int] = PROMPT_TOKENS,
    spaced: bool = False,
    first_id: int = 0,
) -> list[Arrival]:
    """One request per time.

    Args:
        times_s: when they come.
        proportions: shared proportions, each from 0 to below 1; more than one: all of them mixed (the paper's "mixed").
        seed: of lengths and order.
        prompt_tokens: mean lengths of the classes.
        spaced: lay the requests of a prefix about `REUSE_DISTANCE` apart; else all of a round are shuffled.
        first_id: ids of blocks count up from here: two parts of one load must not have the same.
    """
    for proportion in proportions:
        if not 0 <= proportion < 1:
            raise UsageError(f"a shared proportion of {proportion:g} is not from 0 to below 1")
    random = np.random.default_rng(seed)
    ids = count(first_id)
    arrivals: list[Arrival] = []
    while len(arrivals) < len(times_s):
        groups = [
            _group(length, proportion, ids, random)
            for length in prompt_tokens
            for proportion in proportions
            for _ in range(PREFIXES)
        ]
        random.shuffle(groups)
        ordered = _spaced(groups, random) if spaced else _shuffled(groups, random)
        arrivals += ordered[: len(times_s) - len(arrivals)]
    return [replace(each, at_s=at_s) for each, at_s in zip(arrivals, times_s, strict=True)]


def shift(times_s: Sequence[float], *, seed: int, proportions: tuple[float, float] = SHIFT) -> list[Arrival]:
    """The first half of the requests shares the first proportion of its prompts, the second half the second."""
    middle = len(times_s) // 2
    before = shared(times_s[:middle], proportions=proportions[:1], seed=seed)
    free = 1 + max((max(each.block_ids) for each in before), default=-1)
    return before + shared(times_s[middle:], proportions=proportions[1:], seed=seed + 1, first_id=free)


def _group(length: int, proportion: float, ids: count[int], random: np.random.Generator) -> list[Arrival]:
    """The requests of one prefix."""
    prefix: list[int] = []
    group = []
    for _ in range(REQUESTS_PER_PREFIX):
        tokens = max(1, round(float(random.normal(length, PROMPT_DEVIATION * length))))
        share = float(np.clip(random.normal(proportion, PROPORTION_DEVIATION * proportion), 0, 1))
        common = round(share * tokens) // BLOCK_TOKENS  # a block that is shared in part is another block
        prefix += [next(ids) for _ in range(common - len(prefix))]
        own = [next(ids) for _ in range(blocks_of(tokens, BLOCK_TOKENS) - common)]
        output = max(1, round(float(random.normal(*OUTPUT_TOKENS))))
        group.append(Arrival(0.0, tokens, output, (*prefix[:common], *own), BLOCK_TOKENS))
    return group


def _shuffled(groups: Sequence[Sequence[Arrival]], random: np.random.Generator) -> list[Arrival]:
    flat = [each for group in groups for each in group]
    return [flat[int(k)] for k in random.permutation(len(flat))]


def _spaced(groups: Sequence[Sequence[Arrival]], random: np.random.Generator) -> list[Arrival]:
    """Prefixes start one after the other; each one's requests follow at gaps of `REUSE_DISTANCE`."""
    places: list[tuple[float, int, Arrival]] = []
    for number, group in enumerate(groups):
        place = float(number * REQUESTS_PER_PREFIX)
        for each in group:
            places.append((place, number, each))
            place += max(1.0, float(random.normal(*REUSE_DISTANCE)))
    return [each for _, _, each in sorted(places, key=lambda item: item[:2])]
