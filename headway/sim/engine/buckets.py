"""What a link that is shaped by a token bucket lets through at once after a pause. Pure.

A bucket of b bytes fills at the link's rate, and never beyond b. Whatever comes while it holds tokens passes without
waiting; then the link is as fast as its rate. So a link that was idle for b / rate makes up for it: nothing is lost by
pauses up to that long, and small operations are faster than their bytes over the rate. Real switches with shallow
shaping, cloud instances' network credits and the lab's links (docs/lab.md, "Burst") behave so.

Exact for packets (`tandem`) on a link whose flows leave it idle or fill it; where flows leave a part of a link for
long, tokens that would overflow are counted until somebody looks.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from headway.sim.engine.network import Network


class Buckets:
    """The tokens of a network's links: each holds `burst_bytes` at first.

    Args:
        network: whose links.
        burst_bytes: of each link, payload.
    """

    def __init__(self, network: Network, burst_bytes: float) -> None:
        self._capacity_Bps, self._carried_bytes, self._loop = network.capacity_Bps, network.carried_bytes, network.loop
        self._burst_bytes = burst_bytes
        self._states: dict[int, tuple[float, float, float]] = {}

    def take(self, link: int, size_bytes: float) -> float:
        """How much of a packet passes at once; the rest must wait for the link."""
        now_s = self._loop.now_s
        carried_bytes = self._carried_bytes(link)
        before_s, before_bytes, tokens = self._states.get(link, (now_s, carried_bytes, self._burst_bytes))
        tokens += self._capacity_Bps(link) * (now_s - before_s) - (carried_bytes - before_bytes)
        tokens = min(self._burst_bytes, max(0.0, tokens))
        free_bytes = min(tokens, size_bytes)
        self._states[link] = now_s, carried_bytes, tokens - free_bytes
        return free_bytes


_kept: WeakKeyDictionary[Network, Buckets] = WeakKeyDictionary()


def buckets_of(network: Network) -> Buckets | None:
    """The buckets of a network; None where its `realism` has none."""
    burst_bytes = network.realism.burst_bytes
    if burst_bytes <= 0:
        return None
    found = _kept.get(network)
    if found is None:
        found = _kept[network] = Buckets(network, burst_bytes)
    return found
