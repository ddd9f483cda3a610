"""Programs by themselves: prompts, draws, and that steps come in the order that the program says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from headway.errors import UsageError
from headway.serving.workflows.calls import Call
from headway.serving.workflows.programs.drive import drive
from headway.serving.workflows.programs.form import All, CallModel, Context, Program, Sleep
from headway.serving.workflows.programs.named import NAMED, named
from headway.serving.workflows.programs.prompt import Prompt
from headway.sim.engine.loop import Loop
from tests.serving.programs.small import ask, mixed


class Fixed:
    """A host on which each call takes a tenth of a second for each token of its answer."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.seen: list[tuple[float, str, int]] = []
        self.prompts: list[Prompt] = []

    def call(self, step: CallModel, depth: int, done: Callable[[Call], None]) -> None:
        start_s = self.loop.now_s
        self.seen.append((round(start_s, 9), step.model, depth))
        self.prompts.append(step.prompt)
        number, took_s = str(len(self.seen)), step.output_tokens / 10
        call = Call("w", "r", number, step.model, start_s, start_s + took_s, step.prompt.tokens, step.output_tokens)
        self.loop.after(took_s, lambda: done(call))

    def after(self, seconds: float, done: Callable[[], None]) -> None:
        self.loop.after(seconds, done)


def driven(program: Program) -> tuple[Fixed, list[tuple[float, object, int]]]:
    host = Fixed()
    ends: list[tuple[float, object, int]] = []
    drive(program, host, lambda result, depth: ends.append((round(host.loop.now_s, 9), result, depth)))
    host.loop.run()
    return host, ends


def context(run: int = 0, seed: int = 1) -> Context:
    return Context(seed=seed, run=run, block_tokens=64)


def test_steps_follow_each_other_and_a_barrier_waits_for_the_slowest() -> None:
    host, ends = driven(mixed(context()))
    assert host.seen == [(0.0, "a", 0), (0.5, "b", 1), (0.7, "c", 1)]
    assert ends == [(2.1, None, 2)]


def test_results_come_back_in_the_order_of_the_parts() -> None:
    def program() -> Program:
        results = yield All([ask("slow", 9), Sleep(0.1), ask("fast", 1), All([])])
        assert isinstance(results, list)
        return [it.model if isinstance(it, Call) else it for it in results]

    _, ends = driven(program())
    assert ends == [(0.9, ["slow", None, "fast", []], 1)]


def test_depth_is_that_of_the_longest_way() -> None:
    def twice() -> Program:
        yield ask("a", 1)
        yield ask("a", 1)

    def program() -> Program:
        yield All([twice(), ask("b", 5)])
        yield ask("c", 1)

    host, ends = driven(program())
    assert host.seen[-1] == (0.5, "c", 2)
    assert ends == [(0.6, None, 3)]


def test_prompts_share_the_blocks_that_their_texts_share() -> None:
    start = Prompt(64).plus(7, 100)
    one, other = start.plus(8, 100), start.plus(9, 100)
    assert [len(it.blocks) for it in (start, one, other)] == [1, 3, 3]
    assert one.blocks[:1] == other.blocks[:1] == start.blocks
    assert not set(one.blocks[1:]) & set(other.blocks[1:])
    assert Prompt(64).plus(7, 100).plus(8, 100) == one
    assert one.plus(5, 0).blocks == one.blocks
    with pytest.raises(UsageError, match="-1 tokens"):
        start.plus(1, -1)


def test_draws_depend_on_seed_and_run_only() -> None:
    def drawn(context: Context) -> list[object]:
        return [context.length(100, 0.5), context.seconds(1.0, 0.5), context.text(), context.prompt(("x", 70)).blocks]

    assert drawn(context()) == drawn(context())
    assert drawn(context(run=1))[:3] != drawn(context())[:3]
    assert drawn(context(seed=2))[:3] != drawn(context())[:3]
    assert drawn(context(run=1))[3] == drawn(context())[3]


@pytest.mark.parametrize("name", NAMED)
def test_the_named_workflows_end_and_later_prompts_hold_earlier_ones(name: str) -> None:
    host, ends = driven(named(name)(context(run=3)))
    assert len(ends) == 1
    assert len({model for _, model, _ in host.seen}) > 1
    assert all(prompt.tokens >= 1 for prompt in host.prompts)
    again, _ = driven(named(name)(context(run=3)))
    assert again.seen == host.seen
    assert again.prompts == host.prompts


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="beam-search"):
        named("nonsense")


def test_beam_search_is_as_wild_as_reported() -> None:
    """24 to some 840 generator calls; rounds of generator and verifier calls take turns, as many of each."""
    counts = []
    for run in range(300):
        host, _ = driven(named("beam-search")(context(run=run)))
        generator = [model for _, model, _ in host.seen].count("llama-3.2-3b")
        assert 2 * generator == len(host.seen)
        counts.append(generator)
    assert min(counts) == 24
    assert 400 < max(counts) <= 1000
    assert 80 < sum(counts) / len(counts) < 160


def test_beams_share_what_they_branched_from() -> None:
    for run in range(20):
        host, _ = driven(named("beam-search")(context(run=run)))
        if len(host.seen) > 2 * 24:
            break
    second = [prompt for (_, model, _), prompt in zip(host.seen, host.prompts, strict=True) if model == "llama-3.2-3b"]
    beams = second[24:48]
    assert len({beam.blocks for beam in beams}) <= 6


def test_rag_reranks_every_passage_beside_the_others() -> None:
    host, _ = driven(named("rag")(context()))
    reranked = [at_s for at_s, model, _ in host.seen if model == "qwen2.5-1.5b"]
    assert len(reranked) == 20
    assert len(set(reranked)) == 1


def test_debates_have_rounds_with_a_barrier() -> None:
    host, _ = driven(named("debate")(context()))
    starts = sorted({at_s for at_s, _, _ in host.seen})
    assert [sum(1 for at_s, _, _ in host.seen if at_s == start) for start in starts] == [3, 3, 3, 1]


def test_react_grows_its_prompt_turn_by_turn() -> None:
    turns = []
    for run in range(200):
        host, _ = driven(named("react")(context(run=run)))
        own = [it for (_, model, _), it in zip(host.seen, host.prompts, strict=True) if model == "qwen2.5-14b"]
        turns.append(len(own) - 1)
        for before, after in itertools.pairwise(own):
            assert after.blocks[: len(before.blocks)] == before.blocks
    assert min(turns) == 1
    assert max(turns) == 10
