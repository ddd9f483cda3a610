"""How much instances on one GPU slow each other, beyond having a part of it each. Pure.

An instance's curve is that of an engine that has a fraction of the GPU to itself: of its arithmetic, its memory speed
and its memory. Side by side under MPS each still disturbs the other, in the second-level cache, the memory's banks, the
copy engines and the power budget. As in gpulets (Choi et al., USENIX ATC 2022, after arXiv 2109.01611), the slowdown is
linear in what the neighbours use when they run alone:

    slowdown = 1 + per_neighbour * sum over neighbours j of fraction_j * busy_j

gpulets fits five coefficients, to the L2 and DRAM use of both sides; here the neighbours' part of the GPU, times how
busy they are, stands for their use, since an engine that decodes takes what its part of the memory allows. The one
coefficient is from a measurement of vLLM servers under MPS on an H200 (github.com/fergusfinn/mps-embedding-inference,
REPORT.md): a generator beside a busy embedding model lost 6 % of its throughput in repeated runs, and took 14 % longer
for a token in a single one. About half a GPU's neighbour, about 10 %: 0.2 for a whole one. The same report saw no
slowdown between MIG slices: `Interference(per_neighbour=0)`.

Limits. One pair of models, one device. A linear law has no tail: two models whose working sets do not fit the cache
together can do worse than this says. Time-slicing without MPS is another matter. Under MPS a fraction limits arithmetic
only, so beside an idle neighbour an engine may be faster than its curve: this model never says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.errors import UsageError

PER_NEIGHBOUR = 0.2
"""Slowdown by a neighbour that has a whole GPU's worth and is always busy (1). Source: above."""


@dataclass(frozen=True, slots=True)
class Interference:
    """Linear slowdown by neighbours.

    Attributes:
        per_neighbour: as PER_NEIGHBOUR; 0: none, as between MIG slices.
    """

    per_neighbour: float = PER_NEIGHBOUR

    def __post_init__(self) -> None:
        if not 0 <= self.per_neighbour < float("inf"):
            raise UsageError(f"a slowdown of {self.per_neighbour:g} is not 0 or more")

    def slowdown(self, neighbours: Iterable[tuple[float, float]]) -> float:
        """How many times as long everything takes (at least 1).

        Args:
            neighbours: of the instance on its GPU: fraction of the GPU (0 to 1), and the part of the time that they
                are busy (0 to 1).
        """
        return 1.0 + self.per_neighbour * sum(fraction * busy for fraction, busy in neighbours)

    def crowded(self, fraction: float) -> float:
        """The slowdown where the rest of the GPU is taken and always busy: what a plan reckons with before it is
        known who the neighbours are."""
        return self.slowdown([(1.0 - fraction, 1.0)])
