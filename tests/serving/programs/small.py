"""Small programs and fleets whose times can be worked out by hand."""

from __future__ import annotations

from headway.serving.engine.types import EngineProfile
from headway.serving.simulate.instances import Running
from headway.serving.simulate.workflows import Traffic
from headway.serving.workflows.programs.form import All, CallModel, Context, Program, Sleep, Workflow
from headway.serving.workflows.programs.prompt import Prompt
from tests.serving.engine.driving import variant

STEADY = variant(attention_s=0.0, context_s=0.0, token_s=1e-9, step_s=0.0, weights_s=0.1, block_tokens=64)
"""Each step takes 0.1 s, whatever is in it: an answer of n tokens takes n tenths of a second."""


def prompt(tokens: int, text: int = 1) -> Prompt:
    """One text."""
    return Prompt(64).plus(text, tokens)


def ask(model: str, answer: int, tokens: int = 100) -> CallModel:
    """A call that takes `answer` tenths of a second on STEADY."""
    return CallModel(model, prompt(tokens), answer)


def mixed(context: Context) -> Program:
    """0.5 s of a; then b for 0.3 s beside (a tool for 0.2 s and c for 0.4 s); a tool for 1 s: 2.1 s in all."""

    def side(context: Context) -> Program:
        yield Sleep(0.2)
        yield ask("c", 4)
        return "side"

    yield ask("a", 5)
    results = yield All([ask("b", 3), side(context)])
    assert isinstance(results, list)
    assert results[1] == "side"
    yield Sleep(1.0)


def fleet(*models: str, each: int = 1, profile: EngineProfile = STEADY) -> list[Running]:
    """So many instances of each model."""
    return [Running(f"{model}-{number}", model, profile) for model in models for number in range(each)]


def traffic(program: Workflow, rate: float, runs: int, *, warm_up: int = 0, name: str = "w") -> Traffic:
    """Runs of one workflow."""
    return Traffic(name, program, rate, warm_up, runs)
