"""Beam search over steps of reasoning, judged by a process reward model. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.serving.workflows.programs.form import All, CallModel, Context, Program
from headway.serving.workflows.programs.prompt import Prompt


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Rounds of `width` generator calls side by side, then as many verifier calls, with a barrier after each.

    After a round the best `width / branches` beams live on, each `branches` times. As in the "search and learn"
    recipes (Hugging Face, 2024: Llama 3.2 1B or 3B with an 8B reward model, at most 40 rounds) and OpenR's (width 4,
    at most 50 rounds deep). Width, rounds and lengths are ours, so that a run calls the generator 24 to some 800 times
    and takes from seconds to minutes, as is reported of Scepsy's beam search (24 to 844 calls, 9 to 264 s).

    Attributes:
        generator, verifier: models. The verifier answers with one token: it computes the whole solution so far.
        width, branches: counts.
        rounds, rounds_sigma, most_rounds: median, spread (lognormal) and limit of how deep a run is.
        ends: probability that a beam's solution is complete after a round (1).
        step_tokens, step_sigma: of a step of reasoning, median and spread (lognormal).
    """

    generator: str = "llama-3.2-3b"
    verifier: str = "llama-3-8b"
    width: int = 24
    branches: int = 4
    rounds: float = 3.0
    rounds_sigma: float = 0.9
    most_rounds: int = 44
    ends: float = 0.01
    step_tokens: float = 100.0
    step_sigma: float = 0.6

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it calls."""
        return (self.generator, self.verifier)

    def __call__(self, context: Context) -> Program:
        """One run."""
        problem, problem_tokens = context.text(), context.length(110, 0.5)
        ask = context.prompt(("beam search: solve step by step", 130)).plus(problem, problem_tokens)
        judge = context.prompt(("beam search: judge the steps", 60)).plus(problem, problem_tokens)
        beams = [(ask, judge)] * self.width
        for _ in range(context.length(self.rounds, self.rounds_sigma, most=self.most_rounds)):
            lengths = [context.length(self.step_tokens, self.step_sigma, most=1024) for _ in beams]
            yield All([CallModel(self.generator, beam[0], length) for beam, length in zip(beams, lengths, strict=True)])
            longer: list[tuple[Prompt, Prompt]] = []
            for (asked, judged), length in zip(beams, lengths, strict=True):
                step = context.text()
                longer.append((asked.plus(step, length), judged.plus(step, length)))
            yield All([CallModel(self.verifier, judged, 1) for _, judged in longer])
            going = [beam for beam in longer if context.random.random() >= self.ends]
            best = context.random.sample(going, -(-len(going) // self.branches))
            beams = [beam for beam in best for _ in range(self.branches)][: len(going)]
            if not beams:
                break
