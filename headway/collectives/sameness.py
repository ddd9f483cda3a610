"""Who called something else: what each rank called under one number, compared in words.

Each message of an operation carries a mark of what its sender called (see `executor`). A rank that sees another mark
than its own knows only that two ranks differ, so rank 0 asks everybody, and tells all who is in the minority. Until
then every rank holds back other errors: they follow from this one.

| message | from, to | meaning |
| --- | --- | --- |
| differs | any rank -> 0 | in operation `number` somebody called something else than this rank |
| ask     | 0 -> all      | what did you call under this number? |
| said    | all -> 0      | `words` |
| verdict | 0 -> all      | `words` names who called what, `blamed` the rank to blame, if it is clear |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from headway.collectives.plan import Collective

ANSWER_S = 0.6
"""Rank 0 waits this long for all to say what they called; a rank that computes has not called it yet."""

HOLD_S = 1.2
"""Other errors are held back this long for the verdict."""

KEPT_CALLS = 64
"""A rank whose part was only to send may be some operations further before the others notice."""

_NAMED_RANKS = 6


class SamenessMessage(BaseModel):
    """One message of the table above; unused fields stay at their defaults."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["differs", "ask", "said", "verdict"]
    operation: int
    words: str = ""
    blamed: int | None = None


class Called(NamedTuple):
    """What a rank called. `what`: type and reduction in words, "float32 by sum", or empty when unknown."""

    collective: Collective
    size_bytes: int
    element_bytes: int
    root: int
    what: str

    def words(self, size: int) -> str:
        """As a user reads it; `size` ranks share the vector of a reduce-scatter or all-gather."""
        shared = self.collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
        count = self.size_bytes // self.element_bytes // (size if shared else 1)
        text = f"{self.collective.value} of {count} {self.what or f'elements of {self.element_bytes} bytes'}"
        if shared:
            text += " per rank"
        if self.collective is Collective.BROADCAST:
            text += f" from rank {self.root}"
        elif self.collective is Collective.REDUCE:
            text += f" to rank {self.root}"
        return text


class Port(Protocol):
    """The part of `Control` that is needed."""

    def send(self, dst: int, message: SamenessMessage) -> None:
        """See `Control`."""
        ...


class Sameness:
    """One rank's part in finding out who called something else. Progress thread only, but for `note`.

    Args:
        control: to the other ranks.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, control: Port, *, rank: int, size: int) -> None:
        self._control = control
        self._rank = rank
        self._size = size
        self._calls: list[tuple[int, Called] | None] = [None] * KEPT_CALLS
        self._asked: int | None = None
        self._said: dict[int, str] = {}
        self._open: int | None = None
        self._doubtful = False
        self._concluded = False

    def note(self, number: int, called: Called) -> None:
        """This rank called operation `number`."""
        self._calls[number % KEPT_CALLS] = (number, called)
        if self._asked == number:
            self._say(number)

    def notice(self, operation: int) -> None:
        """This rank has seen that another one called something else."""
        self._control.send(0, SamenessMessage(kind="differs", operation=operation))

    def compare(self, operation: int, *, doubtful: bool) -> None:
        """Rank 0: ask all. A `doubtful` comparison has a verdict only if the answers differ."""
        if self._concluded or (self._open is not None and not (self._doubtful and not doubtful)):
            return
        self._doubtful = doubtful
        if self._open == operation:
            return
        self._open, self._said = operation, {}
        for rank in range(self._size):
            self._control.send(rank, SamenessMessage(kind="ask", operation=operation))

    def receive(self, src: int, message: SamenessMessage) -> None:
        """Take a message; a verdict is the caller's."""
        if message.kind == "differs" and self._rank == 0:
            self.compare(message.operation, doubtful=False)
        elif message.kind == "ask":
            self._asked = message.operation
            self._say(message.operation)
        elif message.kind == "said" and message.operation == self._open:
            self._said[src] = message.words
            if len(self._said) == self._size:
                self.conclude()

    def conclude(self) -> None:
        """Rank 0, once all have answered or the time is up: tell all, this rank last, so that it can't leave before."""
        if self._open is None:
            return
        operation, self._open = self._open, None
        if self._doubtful and len(set(self._said.values())) < 2:
            return
        self._concluded = True
        sentence, blamed = verdict(self._said, self._size)
        for rank in (*range(1, self._size), 0):
            self._control.send(
                rank, SamenessMessage(kind="verdict", operation=operation, words=sentence, blamed=blamed)
            )

    def _say(self, number: int) -> None:
        kept = self._calls[number % KEPT_CALLS]
        if kept is None or kept[0] < number:
            return  # not called yet: `note` answers
        words = kept[1].words(self._size) if kept[0] == number else ""
        self._asked = None
        self._control.send(0, SamenessMessage(kind="said", operation=number, words=words))


def verdict(said: Mapping[int, str], size: int) -> tuple[str, int | None]:
    """Who called what, the few first, and the one rank that differs from all others, or None.

    Args:
        said: what each rank called, in words; a rank that is missing has not said.
        size: number of ranks.
    """
    groups: dict[str, list[int]] = {}
    for rank in range(size):
        groups.setdefault(said.get(rank, ""), []).append(rank)
    silent = groups.pop("", [])
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1]))
    if len(ordered) == 1 and not silent:
        return (
            f"all ranks called {ordered[0][0]}, but cut it differently: "
            "the HEADWAY_ settings must be the same on all ranks"
        ), None
    parts = [f"{ranks_in_words(ranks)} {'' if at else 'called '}{words}" for at, (words, ranks) in enumerate(ordered)]
    if silent:
        parts.append(f"{ranks_in_words(silent)} did not say")
    sets = sorted([*(ranks for _, ranks in ordered), *([silent] if silent else [])], key=len)
    clear = len(sets) == 2 and len(sets[0]) == 1 < len(sets[1])
    return f"{', '.join(parts)}: all ranks must call the same", sets[0][0] if clear else None


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Such as "ranks 0, 1 and 5"; a long list is cut short."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = list(map(str, ranks))
    if len(named) > _NAMED_RANKS:
        named = [*named[: _NAMED_RANKS - 1], f"{len(named) - _NAMED_RANKS + 1} others"]
    return f"ranks {', '.join(named[:-1])} and {named[-1]}"
