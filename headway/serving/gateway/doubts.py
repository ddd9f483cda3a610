"""Whose fault a 500 is: the replica's or the request's. Pure.

Engines answer 500 to requests that they can't serve too (llama.cpp to a part that is an image), so one client's
requests must not take replicas from all others. A 500 counts against its replica when one of these holds:

1. the replica's `/health` fails as well, asked at that moment (`health.py`);
2. it is under suspicion, that is, SUSPECT requests in sequence got 500 there and none was answered: then the next one
   that gets 500 is tried on another replica, and that one answers it;
3. the request was not tried elsewhere, or that got no answer either, and MANY different prompts over LONG_S got 500
   there, with no answer in between: this one and the next COUNTED - 1 count, then it begins anew.

Any other 500 says nothing of the replica, and neither does a 501.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SUSPECT = 3
MANY = 20
COUNTED = 3
"""As many as open the circuit breaker."""
LONG_S = 10.0


@dataclass(slots=True)
class _Doubt:
    since_s: float
    count: int = 0
    prompts: set[int] = field(default_factory=set)
    counted: int = 0


class Doubts:
    """The 500s of one pool's replicas since each one's last good answer."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}

    def erred(self, replica: str, prompt: int, now_s: float) -> bool:
        """A healthy replica answered a prompt, given by a hash of it, with 500. Whether it is under suspicion now."""
        doubt = self._doubts.setdefault(replica, _Doubt(now_s))
        doubt.count += 1
        if len(doubt.prompts) < MANY:
            doubt.prompts.add(prompt)
        return doubt.count > SUSPECT

    def condemned(self, replica: str, now_s: float) -> bool:
        """Whether the replica's last 500 counts though no other replica answered it better."""
        doubt = self._doubts.get(replica)
        if doubt is None or len(doubt.prompts) < MANY or now_s - doubt.since_s < LONG_S:
            return False
        doubt.counted += 1
        if doubt.counted == COUNTED:
            del self._doubts[replica]
        return True

    def answered(self, replica: str) -> None:
        """It answered a request well, or has begun to."""
        if self._doubts:
            self._doubts.pop(replica, None)
