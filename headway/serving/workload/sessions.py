"""Loads made of sessions: prompts that grow turn by turn, some of them starting with a text that many share. Pure.

Time is counted in requests here, not in seconds: a session's next turn comes so many requests after its last one.
Arrival times are laid over the sequence afterwards, so that a load has the same sharing and the same reuse distance at
any rate, as where a trace is replayed with other arrivals.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np

from headway.serving.workload.arrival import Arrival
from headway.serving.workload.blocks import blocks_of

BLOCK_TOKENS = 512
"""Mooncake's block."""

UNSEEN = 6000
"""Requests that went by before the load begins: a trace is a window of a service that was already running, so some of
its first requests continue sessions whose earlier turns it does not show."""


@dataclass(slots=True)
class Session:
    """A conversation as it stands after its last turn.

    Attributes:
        name: as `Arrival.session`.
        whole: ids of the whole blocks of its prompt.
        input_tokens, output_tokens: of its last turn.
        turn: its number, from 1.
        lasting: whether it may have another turn.
    """

    name: str
    whole: list[int] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    turn: int = 0
    lasting: bool = True


class Ids:
    """Gives out ids of texts that nobody has seen."""

    def __init__(self) -> None:
        self._next = count()

    def fresh(self, number: int = 1) -> list[int]:
        """So many new ids."""
        return [next(self._next) for _ in range(number)]


class Model(Protocol):
    """What kind of sessions a load is made of."""

    def start(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        """Fill in the first turn of a session."""
        ...

    def go_on(self, session: Session, ids: Ids, random: np.random.Generator) -> None:
        """Turn it into its next turn."""
        ...

    def gap(self, session: Session, random: np.random.Generator) -> float | None:
        """Requests until its next turn; None: this was the last one."""
        ...


DECILES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Quantiles:
    """A distribution of token counts given by its quantiles, log-linear between them."""

    def __init__(self, values: Sequence[float], levels: Sequence[float] = DECILES) -> None:
        if len(values) != len(levels):
            raise ValueError(f"{len(values)} quantiles at {len(levels)} levels")
        self._logs = np.log(np.asarray(values, dtype=float))
        self._levels = np.asarray(levels, dtype=float)

    def draw(self, random: np.random.Generator) -> int:
        """One count, at least 1."""
        return max(1, round(float(np.exp(np.interp(random.random(), self._levels, self._logs)))))


def extend(session: Session, input_tokens: int, ids: Ids, *, kept: int | None = None) -> None:
    """Let the session's prompt be `input_tokens` long: `kept` whole blocks stay (None: all), the rest is new."""
    if kept is not None:
        del session.whole[kept:]
    whole = input_tokens // BLOCK_TOKENS
    del session.whole[whole:]
    session.whole += ids.fresh(whole - len(session.whole))
    session.input_tokens = input_tokens


def sequence(model: Model, times_s: Sequence[float], *, seed: int) -> list[Arrival]:
    """One request per time. Ids count up from 0 in order of first appearance, as in Mooncake's traces."""
    random = np.random.default_rng(seed)
    ids, names = Ids(), count()
    due: list[tuple[float, int, Session]] = []
    arrivals: list[Arrival] = []
    for slot in range(UNSEEN + len(times_s)):
        if due and due[0][0] <= slot:
            session = heapq.heappop(due)[2]
            model.go_on(session, ids, random)
        else:
            session = Session(f"s{next(names)}")
            model.start(session, ids, random)
        session.turn += 1
        gap = model.gap(session, random)
        if gap is not None:
            heapq.heappush(due, (slot + max(1.0, gap), slot, session))
        part = ids.fresh(blocks_of(session.input_tokens, BLOCK_TOKENS) - len(session.whole))
        if slot >= UNSEEN:
            arrivals.append(
                Arrival(
                    at_s=times_s[slot - UNSEEN],
                    input_tokens=session.input_tokens,
                    output_tokens=session.output_tokens,
                    block_ids=(*session.whole, *part),
                    block_tokens=BLOCK_TOKENS,
                    session=session.name,
                )
            )
    return _numbered(arrivals)


def _numbered(arrivals: list[Arrival]) -> list[Arrival]:
    numbers: dict[int, int] = {}
    return [
        Arrival(
            at_s=each.at_s,
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens,
            block_ids=tuple(numbers.setdefault(block, len(numbers)) for block in each.block_ids),
            block_tokens=each.block_tokens,
            session=each.session,
        )
        for each in arrivals
    ]
