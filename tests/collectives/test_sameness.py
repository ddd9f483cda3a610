"""Who called something else is found by messages alone, and every rank hears it."""

from __future__ import annotations

from collections import deque

from headway.collectives.plan import Collective
from headway.collectives.sameness import Called, Sameness, SamenessMessage, ranks_in_words, verdict

SUM = Called(Collective.ALL_REDUCE, 4000, 4, 0, "float32 by sum")
MAX = Called(Collective.ALL_REDUCE, 4000, 4, 0, "float32 by max")
BROADCAST = Called(Collective.BROADCAST, 4000, 4, 2, "float32")


class _World:
    """Ranks in one thread; `heard[r]` are the verdicts of rank r."""

    def __init__(self, size: int) -> None:
        self.queue: deque[tuple[int, int, SamenessMessage]] = deque()
        self.ranks = [Sameness(_Port(self, rank), rank=rank, size=size) for rank in range(size)]
        self.heard: list[list[SamenessMessage]] = [[] for _ in range(size)]

    def pump(self) -> None:
        while self.queue:
            src, dst, message = self.queue.popleft()
            if message.kind == "verdict":
                self.heard[dst].append(message)
            else:
                self.ranks[dst].receive(src, message)


class _Port:
    def __init__(self, world: _World, rank: int) -> None:
        self._world = world
        self._rank = rank

    def send(self, dst: int, message: SamenessMessage) -> None:
        self._world.queue.append((self._rank, dst, message))


def test_every_rank_hears_who_differs_once() -> None:
    world = _World(3)
    for rank, called in enumerate((SUM, BROADCAST, SUM)):
        world.ranks[rank].note(7, called)
    for rank in (2, 0, 1):
        world.ranks[rank].notice(7)
    world.pump()
    world.ranks[1].notice(7)
    world.pump()
    for heard in world.heard:
        assert [message.operation for message in heard] == [7]
        assert heard[0].blamed == 1
        assert heard[0].words == (
            "rank 1 called broadcast of 1000 float32 from rank 2, ranks 0 and 2 all_reduce of 1000 float32 by sum: "
            "all ranks must call the same"
        )


def test_a_rank_that_calls_late_answers_then() -> None:
    world = _World(3)
    world.ranks[0].note(0, SUM)
    world.ranks[1].note(0, MAX)
    world.ranks[1].notice(0)
    world.pump()
    assert world.heard == [[], [], []]
    world.ranks[2].note(0, MAX)
    world.pump()
    assert all(message.blamed == 0 for heard in world.heard for message in heard)


def test_without_an_answer_in_time_the_others_are_told_what_is_known() -> None:
    world = _World(3)
    world.ranks[0].note(0, SUM)
    world.ranks[1].note(0, MAX)
    world.ranks[0].notice(0)
    world.pump()
    world.ranks[0].conclude()
    world.pump()
    assert len(world.heard[2]) == 1
    assert "rank 2 did not say" in world.heard[2][0].words
    assert world.heard[2][0].blamed is None


def test_an_old_call_is_remembered_for_a_while() -> None:
    world = _World(2)
    for number in range(20):
        world.ranks[1].note(number, BROADCAST if number == 3 else SUM)
    world.ranks[0].note(3, SUM)
    world.ranks[0].notice(3)
    world.pump()
    assert "rank 1 broadcast of 1000 float32" in world.heard[1][0].words
    assert world.heard[1][0].blamed is None, "of two ranks either may be right"


def test_a_doubtful_comparison_has_a_verdict_only_if_the_calls_differ() -> None:
    for other, verdicts in ((SUM, 0), (MAX, 1)):
        world = _World(2)
        world.ranks[0].note(0, SUM)
        world.ranks[1].note(0, other)
        world.ranks[0].compare(0, doubtful=True)
        world.pump()
        assert [len(heard) for heard in world.heard] == [verdicts, verdicts]


def test_the_same_calls_cut_differently_point_to_the_settings() -> None:
    sentence, blamed = verdict({0: "x", 1: "x"}, 2)
    assert "HEADWAY_" in sentence
    assert blamed is None


def test_long_lists_of_ranks_are_cut_short() -> None:
    assert ranks_in_words([4]) == "rank 4"
    assert ranks_in_words([0, 2, 5]) == "ranks 0, 2 and 5"
    assert ranks_in_words(range(64)) == "ranks 0, 1, 2, 3, 4 and 59 others"
