"""Recorded runs as programs: which call waited for which, and runs that come again."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.allocation.types import Shape, Share
from headway.serving.simulate.instances import Running, engine, instances, unplaced
from headway.serving.simulate.workflows import Simulated, Traffic, run_workflows
from headway.serving.workflows.blocks import ALIKE, Copies, block_size
from headway.serving.workflows.calls import Call, Run
from headway.serving.workflows.programs.form import All, CallModel, Context, Program, Sleep, Workflow
from headway.serving.workflows.programs.named import named
from headway.serving.workflows.programs.recorded import Asked, Recorded, parts_of
from headway.serving.workflows.record import runs_of
from tests.serving.engine.driving import variant
from tests.serving.programs.small import ask, fleet, mixed, traffic


def call(id_: str, start_s: float, end_s: float, *, model: str = "a", blocks: tuple[int, ...] = ()) -> Call:
    return Call("w", "1", id_, model, start_s, end_s, 100, 5, blocks, 64 if blocks else 0)


def a_run(*calls: Call) -> Run:
    (run,) = runs_of(calls)
    return run


def tree(asked: Asked) -> object:
    """(id, seconds after what it waited for, what waited for it)."""
    return (asked.call.id, pytest.approx(asked.after_s), [tree(it) for it in asked.then])


def shape(run: Run) -> list[object]:
    return [(pytest.approx(part.after_s), [tree(it) for it in part.calls]) for part in parts_of(run)]


def test_rounds_with_barriers_and_a_tool_between_are_parts() -> None:
    run = a_run(
        call("a", 10.0, 11.0),
        call("b1", 11.5, 12.0), call("b2", 11.5, 13.0), call("b3", 11.6, 12.5),
        call("c", 13.0, 14.0),
    )  # fmt: skip
    assert shape(run) == [
        (0.0, [("a", 0.0, [])]),
        (0.5, [("b1", 0.0, []), ("b2", 0.0, []), ("b3", 0.1, [])]),
        (0.0, [("c", 0.0, [])]),
    ]


def test_branches_side_by_side_are_sequences() -> None:
    """One branch of two calls with a tool of 0.3 s between, one of three, that never are quiet together."""
    run = a_run(
        call("a1", 0.0, 1.0), call("a2", 1.3, 4.0),
        call("b1", 0.0, 1.5), call("b2", 1.5, 2.0), call("b3", 2.0, 3.0),
    )  # fmt: skip
    assert shape(run) == [
        (0.0, [("a1", 0.0, [("a2", 0.3, [])]), ("b1", 0.0, [("b2", 0.0, [("b3", 0.0, [])])])]),
    ]


def replayed(program: Workflow, models: str, *, each: int = 4) -> tuple[Simulated, Simulated]:
    """A program's run alone, and its recording's."""
    running = fleet(*models, each=each)
    first = run_workflows(instances(running), [traffic(program, 0.01, 1)], seed=1)
    again = run_workflows(instances(running), [traffic(Recorded(runs_of(first.calls)), 0.01, 1)], seed=2)
    return first, again


def times(simulated: Simulated) -> list[tuple[str, float, float]]:
    """Model, begin and end of each call, seconds from the run's first call."""
    begin_s = min(it.start_s for it in simulated.calls)
    return sorted((it.model, round(it.start_s - begin_s, 6), round(it.end_s - begin_s, 6)) for it in simulated.calls)


def test_a_recorded_run_takes_its_own_time_on_the_same_engines() -> None:
    first, again = replayed(mixed, "abc")
    assert len(first.calls) == 3
    assert times(again) == times(first)


def rounds(context: Context) -> Program:
    """Two rounds of three calls of different lengths, a tool between."""
    for _ in range(2):
        yield All([ask("a", tenths) for tenths in (1, 3, 2)])
        yield Sleep(0.2)
    yield ask("b", 2)


def test_barriers_hold_where_the_slowest_is_another_one() -> None:
    """On engines three times as slow, with one call at a time, a run of rounds takes what its program takes."""
    slow = variant(
        attention_s=0.0, context_s=0.0, token_s=1e-9, step_s=0.0, weights_s=0.3, block_tokens=64, most_running=1
    )
    recording = run_workflows(instances(fleet("a", "b", each=4)), [traffic(rounds, 0.01, 1)], seed=1)
    for program in (rounds, Recorded(runs_of(recording.calls))):
        result = run_workflows(instances(fleet("a", "b", profile=slow)), [traffic(program, 0.01, 1)], seed=1)
        assert result.rows[0].latency_s == pytest.approx(2 * (6 * 0.3 + 0.2) + 0.6)


def test_each_run_comes_as_often_as_the_others() -> None:
    runs = [Run("w", str(number), (call("x", 0.0, 1.0, model=f"m{number}"),)) for number in range(5)]
    program = Recorded(runs)

    def model(number: int) -> str:
        part = next(program(Context(seed=1, run=number, block_tokens=64)))
        assert isinstance(part, All)
        step = next(part.parts[0])  # type: ignore[arg-type]
        assert isinstance(step, CallModel)
        return step.model

    turns = [[model(number) for number in range(first, first + 5)] for first in (0, 5, 10, 15)]
    assert all(sorted(turn) == [f"m{number}" for number in range(5)] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1


def test_a_run_that_comes_again_shares_only_what_others_shared() -> None:
    runs = [[call("x", 0.0, 1.0, blocks=(1, 2, 30))], [call("y", 0.0, 1.0, blocks=(1, 2, 40))]]
    copies = Copies(runs, seed=0)
    once, again = copies.renamed((1, 2, 30), 1), copies.renamed((1, 2, 30), 2)
    assert once[:2] == again[:2] == (1, 2)
    assert len({once[2], again[2], 30}) == 3
    assert once == copies.renamed((1, 2, 30), 1)


@pytest.mark.parametrize("name", ["rag", "react", "beam-search"])
def test_a_recording_behaves_as_its_program_on_other_engines(name: str) -> None:
    """Recorded on a GPU for each model, replayed on half a GPU for each, at a load at which calls meet: the same runs,
    so the mean latency is the program's within a few per cent."""
    program = named(name)
    models = {it.model for it in _calls_of(program)}
    whole, half = (
        unplaced([Share(it, Shape(1, parts), 1) for it in sorted(models)], device="h100", slices_per_gpu=10)
        for parts in (10, 5)
    )
    recorded = run_workflows(instances(whole), [Traffic(name, program, 0.005, 0, 40)], seed=1)
    rate = {"rag": 1.0, "react": 0.3, "beam-search": 0.1}[name]
    means_s = [
        sum(it.latency_s or 0.0 for it in result.rows) / len(result.rows)
        for result in (
            run_workflows(instances(half), [Traffic(name, it, rate, 0, 40, cool_down=0)], seed=1)
            for it in (program, Recorded(runs_of(recorded.counted_calls())))
        )
    ]
    assert means_s[1] == pytest.approx(means_s[0], rel=0.06)


def _calls_of(program: Workflow) -> list[CallModel]:
    """All calls of a few runs, whatever their results."""
    found: list[CallModel] = []

    def walk(step: object) -> None:
        if isinstance(step, CallModel):
            found.append(step)
        elif isinstance(step, All):
            for part in step.parts:
                walk(part)
        elif not isinstance(step, Sleep):
            for inner in step:  # type: ignore[attr-defined]
                walk(inner)

    for number in range(8):
        walk(program(Context(seed=1, run=number, block_tokens=64)))
    return found


def test_sizes_of_blocks_that_are_estimates_give_their_median() -> None:
    sizes = (64, 50, 51, 51, 52, 50)
    calls = [Call("w", "1", str(at), "a", 0, 1, 100, 5, (1, 2), size) for at, size in enumerate(sizes)]
    assert block_size(calls) == 51
    assert block_size([call("x", 0, 1)]) == 16
    other = [Call("w", "2", str(at), "a", 0, 1, 100, 5, (1, 2), round(52 * ALIKE) + 1) for at in range(3)]
    with pytest.raises(UsageError, match="blocks are of 52 tokens, and of 105"):
        block_size([*calls, *other])
    assert block_size([*calls, other[0]]) == 51


def test_calls_without_lengths_are_refused_and_those_without_answers_taken() -> None:
    unknown = Call("w", "1", "x", "a", 0.0, 1.0, 0, 0)
    with pytest.raises(UsageError, match="1 have no token counts, the first: call x of w to a"):
        Recorded([a_run(unknown)])
    embedding = Recorded([a_run(Call("w", "1", "x", "a", 0.0, 1.0, 64, 0))])
    result = run_workflows(instances(fleet("a")), [traffic(embedding, 0.01, 1)], seed=1)
    assert [it.output_tokens for it in result.calls] == [1]
    with pytest.raises(UsageError, match="no run was recorded"):
        Recorded([])


def test_models_may_have_blocks_of_different_sizes() -> None:
    shapes = {"llama-3-8b": 50, "qwen2.5-7b": 64}
    calls = [
        Call("w", "1", model, model, at, at + 1.0, size * 3, 5, (at + 1, at + 2, at + 3), size)
        for at, (model, size) in enumerate(shapes.items())
    ]
    program = Recorded([a_run(*calls)])
    assert program.block_tokens == shapes
    running = [
        *unplaced([Share("llama-3-8b", Shape(1, 10), 1)], device="h100", slices_per_gpu=10, block_tokens=50),
        *unplaced([Share("qwen2.5-7b", Shape(1, 10), 1)], device="h100", slices_per_gpu=10, block_tokens=64),
    ]
    assert {it.profile.block_tokens for it in running} == {50, 64}
    result = run_workflows(instances(running, policy="prefix-and-load"), [traffic(program, 0.01, 1)], seed=1)
    assert result.rows[0].end_s is not None
    other = engine("h100", "llama-3-8b", Shape(1, 10), 10, block_tokens=64)
    with pytest.raises(UsageError, match="those of a model blocks of one size"):
        run_workflows(instances([*running, Running("more", "llama-3-8b", other)]), [traffic(program, 0.01, 1)], seed=1)
