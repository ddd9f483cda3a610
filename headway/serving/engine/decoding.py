"""The requests past their first token, of which each gets one more in every step. Pure.

Nothing is counted up per request: what one has produced follows from the number of steps since it joined, and when it
will end or need a block is known then, so that it stands in a calendar of steps. A step costs O(1), however many they
are, and steps in which nothing is due can pass at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from headway.serving.engine.sequence import Phase, Sequence


class Decoding:
    """Those of one engine.

    Attributes:
        step: the engine's steps so far, also those without any of these requests (count).
        context: tokens of context of all of them, after that step.

    Args:
        block_tokens: tokens in a block of the KV cache.
    """

    def __init__(self, block_tokens: int) -> None:
        self.step = 0
        self.context = 0
        self._block_tokens = block_tokens
        self._sequences: dict[str, Sequence] = {}
        self._ends: dict[int, list[tuple[Sequence, int]]] = {}
        self._needs: dict[int, list[tuple[Sequence, int]]] = {}
        self._marks: list[int] = []  # heap: steps that must be the last of a series

    def __len__(self) -> int:
        return len(self._sequences)

    def join(self, sequence: Sequence) -> None:
        """Its next token comes in the next step, and one in each after that."""
        sequence.phase = Phase.DECODE
        sequence.moves += 1
        sequence.joined = self.step
        self._sequences[sequence.job.id] = sequence
        self.context += sequence.computed
        end = self.step + sequence.job.output_tokens - sequence.produced
        self._ends.setdefault(end, []).append((sequence, sequence.moves))
        heapq.heappush(self._marks, end)
        room = sequence.blocks * self._block_tokens - sequence.computed
        self._need_at(self.step + room + 1, sequence)

    def leave(self, sequence: Sequence) -> None:
        """It gets no more tokens; what it got is added to `produced`."""
        del self._sequences[sequence.job.id]
        steps = self.step - sequence.joined
        sequence.produced += steps
        self.context -= sequence.computed + steps

    def pass_steps(self, steps: int) -> None:
        """So many steps have ended."""
        self.step += steps
        self.context += steps * len(self._sequences)

    def produced(self, more_steps: int = 0) -> Iterator[tuple[Sequence, int]]:
        """Each with the tokens that it has produced, or will have after so many more steps."""
        step = self.step + more_steps
        return ((it, it.produced + step - it.joined) for it in self._sequences.values())

    def needy(self) -> Iterator[Sequence]:
        """Those whose token of the next step begins a block. Ask once a step; one that leaves meanwhile is left out."""
        return _valid(self._needs.pop(self.step + 1, []))

    def got_block(self, sequence: Sequence) -> None:
        """A needy one has got its block, and needs another when that is full."""
        self._need_at(self.step + 1 + self._block_tokens, sequence)

    def ended(self) -> Iterator[Sequence]:
        """Those that got their last token in the step that has just ended. Ask once a step."""
        return _valid(self._ends.pop(self.step, []))

    def quiet_steps(self) -> int:
        """How many steps may pass at once: up to one in which a request ends, or after which one needs a block."""
        marks = self._marks
        while marks and marks[0] <= self.step:
            heapq.heappop(marks)
        return marks[0] - self.step if marks else 1

    def _need_at(self, step: int, sequence: Sequence) -> None:
        self._needs.setdefault(step, []).append((sequence, sequence.moves))
        heapq.heappush(self._marks, step - 1)


def _valid(planned: list[tuple[Sequence, int]]) -> Iterator[Sequence]:
    """Those that have not changed phase since."""
    return (sequence for sequence, moves in planned if sequence.moves == moves)
