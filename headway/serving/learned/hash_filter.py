"""Keeps a prefix on few replicas when caches are full, so that replicas don't push each other's prefixes out. Pure.

Lodestar, Algorithm 4: when the caches of the fleet are nearly full and a hit is worth something, only k replicas may
answer, chosen by a hash of the prefix; the model picks among them. Paper: 1865 ms mean TTFT against 3209 ms without.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from headway.serving.policy import Candidate
from headway.serving.prefix import mix
from headway.serving.request import Request

GROUP_TOKENS = 160
"""Depth at which two prompts belong to one prefix group: 10 blocks of 16 tokens (Lodestar's code). With larger blocks:
the first whole block at least as deep."""

WORTH_TOKENS = 100
"""Least hit that is worth keeping (Lodestar's tau_benefit), tokens."""

_MASK = (1 << 64) - 1


class HashFilter:
    """Picks the replicas that may answer, by rendezvous hashing: a replica that comes or goes moves only its own share.

    Args:
        saturation: mean KV usage of the fleet above which it works, 0 to 1.
        keep: replicas that remain.
        salt: of the hash.
    """

    def __init__(self, *, saturation: float, keep: int = 2, salt: int = 0) -> None:
        self._saturation, self._keep, self._salt = saturation, keep, salt
        self._names: dict[str, int] = {}

    def kept(self, request: Request, candidates: Sequence[Candidate]) -> list[int]:
        """Indices of those that may answer, in ascending order; all where the filter does not apply.

        A replica whose engine doesn't say how full its cache is does not count in the mean.
        """
        everyone = list(range(len(candidates)))
        if len(candidates) <= self._keep or not request.blocks:
            return everyone
        if max(candidate.hit_tokens for candidate in candidates) <= WORTH_TOKENS:
            return everyone
        usages = [
            candidate.state.report.kv_usage
            for candidate in candidates
            if candidate.state.report is not None and candidate.state.report.kv_usage is not None
        ]
        if not usages or sum(usages) / len(usages) <= self._saturation:
            return everyone
        group = prefix_group(request)
        ranked = sorted(everyone, key=lambda index: self._weight(group, candidates[index].name), reverse=True)
        return sorted(ranked[: self._keep])

    def _weight(self, group: int, name: str) -> int:
        key = self._names.get(name)
        if key is None:
            key = int.from_bytes(blake2b(name.encode(), digest_size=8, salt=self._salt.to_bytes(8, "big")).digest())
            self._names[name] = key
        return mix(group ^ key)


def prefix_group(request: Request) -> int:
    """The hash of the prompt up to GROUP_TOKENS, or all of it where it is shorter. The request has blocks."""
    block = max(0, -(-GROUP_TOKENS // request.block_tokens) - 1)
    return request.blocks[min(block, len(request.blocks) - 1)] & _MASK
